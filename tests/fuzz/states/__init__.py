"""Damaged folders that kerasmem reads or writes into.

Each kind of folder is a module of this package and a key of `worker.KINDS`:

    prepare(room)                 write the sound folders of the kind; called once
    drawn(draw)                   return a request as JSON data: what is called, and how
    change(room, request, draw)   make one random change in the room
    own(room, request)            return the paths in the room that the call may change
    use(room, request)            call kerasmem and compare its result

`room` is a folder with a copy of everything that `prepare` wrote, and with files of a
user. `own` runs after the changes and before the call. `use` returns normally if the
result is right, raises `WrongResultError` if not, and lets every exception of
kerasmem pass. A case fails if the exception is not a `KerasMemError`, if a path outside
of `own` has changed, or if the call takes more than 10 s or 1 GiB.
"""
