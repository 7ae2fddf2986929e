"""The counter of replaced methods finds each form and leaves ordinary data alone."""

import ast

import pytest

from tests.replaced import places

pytestmark = pytest.mark.one_backend

SETTER = (
    "def put(x, name, value): object.__setattr__(x, name, value)\n"
    "def wrap(x, name, f):\n    object.__setattr__(x, name, partial(f, x))\n"
    "def before(x, name): return wrap(x, name, print)\n"
)
CLASSES = (
    "class Step:\n"
    "    def __call__(self): pass\n"
    "    def run(self): pass\n"
    "    def hook(self):\n"
    "        def call(): pass\n"
    "        return call\n"
)


def found(code: str) -> list[str]:
    """Return attributes and kinds of the places in a module."""
    return [place.partition(": ")[2] for place in places({"a.py": ast.parse(code)})]


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("patch_method(layer, 'call', f)", "patch_method: patch"),
        ("undo(backends.patch_method(layer, 'call', f))", "patch_method: patch"),
        ("map(patch_method, layers)", "patch_method: patch"),
        ("with shadow(layer, 'call', f): pass", "shadow: patch"),
        ("with mock.patch('keras.Model.fit'): pass", "mock.patch: patch"),
        ("patch.object(keras.Model, 'fit')", "patch.object: patch"),
        ("store.__class__ = type('Other', (), {})", "store.__class__: class"),
        ("class A:\n def f(self): self.__class__ = B", "self.__class__: class"),
        ("object.__setattr__(x, '__class__', B)", "x.__class__: class"),
        ("json.JSONEncoder = Encoder", "json.JSONEncoder: class"),
        ("def f(): pass\nwarnings.showwarning = f", "warnings.showwarning: function"),
        ("a.hook = b.hook = lambda: 1", "a.hook: function"),
        ("from functools import partial\nx.hook = partial(f, 1)", "x.hook: function"),
        ("x.hook = wraps(f)(g)", "x.hook: function"),
        ("x.hook = f if y else lambda: 1", "x.hook: function"),
        ("x.hook = y or (lambda: 1)", "x.hook: function"),
        ("x.hook, x.size = lambda: 1, 2", "x.hook: function"),
        ("def f():\n new = lambda: 1\n x.hook = new", "x.hook: function"),
        ("import keras\nlayer.f = keras.activations.linear", "layer.f: function"),
        ("one.run = graph.__call__", "one.run: function"),
        (CLASSES + "x.hook = Step()", "x.hook: function"),
        (CLASSES + "step = Step()\nx.hook = step", "x.hook: function"),
        (CLASSES + "    def put(self, x): x.hook = self", "x.hook: function"),
        (CLASSES + "    def put(self, x): x.hook = self.run", "x.hook: function"),
        (CLASSES + "    def put(self, x): x.y = self.hook()", "x.y: function"),
        ("def f():\n def g(): pass\n return g\nx.hook = f()", "x.hook: function"),
        ("setattr(x, 'hook', lambda: 1)", "x.hook: function"),
        ("setattr(x, name, 1)", "x.name: unknown name"),
        ("setattr(x, f'{kind}_step', 1)", "x.f'{kind}_step': unknown name"),
        ("setattr(*place, 1)", "place.*: unknown name"),
        ("setattr(*place, lambda: 1)", "place.*: function"),
        ("setattr(x, *pair)", "x.*: unknown name"),
        ("object.__setattr__(*triple)", "triple.*: unknown name"),
        ("def f():\n setattr(*x, 1)\n yield\n setattr(*x, 2)", "x.*: unknown name"),
        ("def f(): pass\nsetattr(x, f.__name__, f)", "x.f: function"),
        ("vars(x)['hook'] = lambda: 1", "x.hook: function"),
        ("x.__dict__['call'] = y", "x.call: method of Keras"),
        ("vars(x).update(call=y)", "x.call: method of Keras"),
        ("vars(x).update(others)", "x.*: unknown name"),
        ("def f(model, g): model.save = g", "model.save: method of Keras"),
        ("def f(cls, g): cls.add_weight = g", "cls.add_weight: method of Keras"),
        (
            "class A:\n @classmethod\n def f(cls, g): cls.add_weight = g",
            "cls.add_weight: method of Keras",
        ),
        (
            "name = '_initialize_with_initializer'\nsetattr(keras.Variable, name, g)",
            "keras.Variable._initialize_with_initializer: method of Keras",
        ),
        ("model.train_function = self.step", "model.train_function: compiled step"),
        (
            "def f():\n old = model.optimizer\n"
            " object.__setattr__(model, 'optimizer', new)\n"
            " yield\n object.__setattr__(model, 'optimizer', other)",
            "model.optimizer: set and put back",
        ),
        (
            "def f():\n for owner, name in pairs: setattr(owner, name, 1)\n yield\n"
            " for owner, name in pairs: setattr(owner, name, 2)",
            "owner.name: unknown name",
        ),
        (SETTER + "put(layer, '__class__', A)", "layer.__class__: class"),
        (SETTER + "put(layer, name='hook', value=put)", "layer.hook: function"),
        (SETTER + "wrap(layer, 'hook', 1)", "layer.hook: function"),
        (SETTER + "put(*place, 1)", "place.*: unknown name"),
        (SETTER + "before(layer, 'hook')", "layer.hook: function"),
    ],
)
def test_each_form_is_found_once(code, place):
    assert found(code)[:1] == [place]
    assert len(found(code)) == 1 + code.startswith("a.hook")


@pytest.mark.parametrize(
    "code",
    [
        "variable.trainable = value",
        "def f():\n def value(): pass\n variable.trainable = False",
        "def f(): pass\nvariable.regularizer = f",
        "variable.constraint = lambda x: x",
        "model.stop_training = True",
        "module.LIMIT = 1",
        "model.train_function = None",
        "chunk.size, chunk.next = size, rest",
        "def f(value): layer.scale = value\ndef value(): pass",
        "class A:\n def f(self): self.hook = lambda: 1",
        "class A:\n def f(self):\n  def g(): self.hook = lambda: 1",
        "class A:\n def f(self, name): setattr(self, name, 1)",
        "class A:\n def f(self, name, x): object.__setattr__(self, name, x)",
        "class A:\n def f(self, pair): setattr(self, *pair)",
        "class A:\n call = lambda self: 1",
        "object.__setattr__(x, '_note', 1)",
        "name = '_note'\nobject.__setattr__(x, name, 1)",
        "values['call'] = f",
        "vars(x).pop('call')",
        "x.pixels = image.pixels",
        "x.count = total()",
        CLASSES + "x.step = Step",
        CLASSES + "x.total = y.hook()",
        SETTER + "put(layer, '_note', 1)",
        "def f():\n old = tf.listed\n tf.listed = old",
        "dispatch('patch')",
    ],
)
def test_ordinary_data_is_not_found(code):
    assert found(code) == []


def test_putting_back_is_not_a_second_place():
    code = (
        "def scope(model, step):\n"
        "    own = vars(model).get('call')\n"
        "    object.__setattr__(model, 'call', step)\n"
        "    yield\n"
        "    object.__setattr__(model, 'call', own)\n"
    )
    assert found(code) == ["model.call: method of Keras"]
    assert len(found(code + "def other(model, f):\n    model.call = f\n")) == 2
