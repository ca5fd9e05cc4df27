"""Lines of the script that read values of tensors are in a trial's record, with their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.test_runtime_trial import MODEL, STOP, finish, start
from tests.run_events import events

AUDITED = {**STOP, "audit_steps": 5, "min_steps": 16}
READS = """
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
torch.arange(9).sum().item()  # before the first step
for count in range(100):
    x, y = torch.randn(8, 8), torch.randint(0, 2, (8,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    loss.item() + loss.detach().item()
    f"{loss:.3f}"
    str(x)
    float(loss)
    x.tolist(), y.cpu()
    if loss > 100: pass
    "abcdefghij"[y[0]]
    if count % 2 == 0: int(loss)
"""


def line(text: str) -> str:
    """The place of the one line of the script that holds `text`."""
    (number,) = (n for n, x in enumerate((MODEL + READS).splitlines(), 1) if text in x)
    return f"script.py:{number}"


def reads(folder: Path) -> tuple[int, dict[tuple[str, str], tuple[int, int]]]:
    """Steps that were looked at; steps and calls by place and call."""
    (seen,) = events(folder / "run", "waits")
    assert {read["device"] for read in seen["reads"]} <= {"cpu"}
    found = {(r["where"], r["call"]): (r["steps"], r["calls"]) for r in seen["reads"]}
    return seen["steps"], found


def test_each_way_to_read_a_value_is_told_with_line_steps_and_calls(tmp_path: Path) -> None:
    assert finish(start(tmp_path, READS, stop=AUDITED))[0] == 0
    assert events(tmp_path / "run", "hook") == []
    steps, found = reads(tmp_path)
    assert steps == 4  # all audited ones but the first
    assert found.pop((line("str(x)"), "printing"))[0] == 4
    assert found == {
        (line("loss.item()"), ".item()"): (4, 8),
        (line(":.3f"), "printing"): (4, 4),
        (line("float(loss)"), "float()"): (4, 4),
        (line("x.tolist()"), ".tolist()"): (4, 4),
        (line("y.cpu()"), ".cpu()"): (4, 4),
        (line("if loss"), "a condition"): (4, 4),
        (line("[y[0]]"), "an index"): (4, 4),
        (line("int(loss)"), "int()"): (2, 2),
    }


HARMLESS = """
import json, pickle, traceback
NAMES = ("item", "tolist", "cpu", "__float__", "__int__", "__index__", "__bool__")
METHODS = {name: getattr(torch.Tensor, name) for name in NAMES}
class Own(torch.Tensor):
    handled = {torch.Tensor.item: "handled"}
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in cls.handled:
            return cls.handled[function]
        return super().__torch_function__(function, types, args, kwargs or {})
class Calling(torch.Tensor):
    def item(self):
        return ("own", super().item())
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
@torch.compile(backend=backend)
def compiled(v):
    return v * v.sum().item()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
said = []
for count, (x, y) in enumerate(batches(800)):
    step(x, y)
    mine = torch.ones(1).as_subclass(Own)
    with torch.device("cpu"):
        values = [torch.ones(1).item(), bool(torch.ones(1)), float(nn.Parameter(torch.ones(1)))]
    values += [mine.item(), float(mine), torch.ones(1).as_subclass(Calling).item()]
    values += [torch.func.grad(lambda v: v * v.item())(torch.tensor(3.0)).tolist()]
    compiled(torch.ones(2))
    try:
        torch.ones(2).item()
    except RuntimeError as error:
        values += [str(error), len(traceback.extract_tb(error.__traceback__))]
    try:
        torch.func.vmap(lambda v: v.item())(torch.ones(2))
    except RuntimeError as error:
        values += [str(error)[:30]]
    child = os.fork()
    if child == 0:
        os._exit(0 if all(getattr(torch.Tensor, n) is m for n, m in METHODS.items()) else 1)
    values += [os.waitpid(child, 0)[1], torch.Tensor.item.__name__]
    values += [pickle.loads(pickle.dumps(torch.ones(1))).item(), len(graphs)]
    said.append(values)
    if count > 12:
        assert all(getattr(torch.Tensor, name) is m for name, m in METHODS.items())
        assert not set(NAMES) & set(vars(torch.Tensor))
        print(json.dumps(said))
        break
"""


def test_the_script_reads_the_same_values_and_errors_and_torch_is_as_it_was(tmp_path: Path) -> None:
    longer = {**AUDITED, "min_steps": 40}
    code, out, err = finish(start(tmp_path, HARMLESS, stop=longer))
    assert code == 0, err
    said: list[list[Any]] = json.loads(out)
    assert said[0][3] == "handled"
    assert said[0][5] == ["own", 1.0]
    assert all(values == said[-1] for values in said)  # with and without our looking
    assert events(tmp_path / "run", "hook") == []
    (seen,) = events(tmp_path / "run", "waits")
    assert seen["steps"] == 4


def test_trials_under_settings_are_left_alone(tmp_path: Path) -> None:
    settings = ({"knob": "cpu_threads", "value": 1},)
    assert finish(start(tmp_path, READS, settings=settings, stop=AUDITED))[0] == 0
    assert len(events(tmp_path / "run", "audit")) == 5
    assert events(tmp_path / "run", "waits") == []
