"""The rows of a run as Markdown."""

from tests.benchmarks.peers.verdict import verdict

OURS = "kerasmem"
FILES = ("job", "tool", "file", "bytes", "gzipped", "in RAM", "accuracy", "verdict")
STUDENTS = ("tool", "settings", "ms a step", "accuracy", "verdict")


def markdown(rows, networks):
    """Return the tables of files and of students, net by net, then what did not run.

    Args:
        rows: of all tools.
        networks: names of the nets.
    """
    parts = []
    for network in networks:
        here = [row for row in rows if row.network == network]
        students = [row for row in here if row.job == "distill"]
        made = [row for row in here if row.job != "distill"]
        parts += [f"## The {network} net", table(FILES, _sorted(made), here, _file)]
        if students:
            parts.append(f"A student a quarter as wide as the {network} net:")
            parts.append(table(STUDENTS, students, here, _student))
    parts += [f"- {row.tool}: {row.note}" for row in rows if not row.network]
    return "\n\n".join(parts) + "\n"


def table(head, rows, all_rows, cells):
    lines = [head, ["---"] * len(head)]
    lines += [cells(row, _verdict(row, all_rows)) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _verdict(row, rows):
    if _is_ours(row):
        return row.note
    same = [
        one
        for one in rows
        if _is_ours(one) and (one.job, one.family) == (row.job, row.family)
    ]
    said = verdict(row, same)
    return f"{said}; {row.note}" if row.note else said


def _is_ours(row):
    return row.tool.startswith(OURS)


def _sorted(rows):
    """By job, in the order of their first row, kerasmem's rows first."""
    jobs = list(dict.fromkeys(row.job for row in rows))
    return sorted(rows, key=lambda row: (jobs.index(row.job), not _is_ours(row)))


def _file(row, said):
    sizes = (row.file_bytes, row.gzip_bytes, row.weight_bytes)
    numbers = ["" if size is None else f"{size:,}" for size in sizes]
    return [row.job, row.tool, row.form, *numbers, _percent(row), _cell(said)]


def _student(row, said):
    time = "" if row.step_ms is None else f"{row.step_ms:.2f}"
    return [row.tool, row.form, time, _percent(row), _cell(said)]


def _percent(row):
    return "" if row.accuracy is None else f"{100 * row.accuracy:.2f} %"


def _cell(text):
    return text.replace("|", "\\|")
