from nnadapter.ir import verify
from nnadapter.ir.builder import ModelEditor
from tests.ir.passes.program import Program, chain


def test_new_operation_reads_the_final_substitute():
    program = Program(x=(2, 3))
    first, second, third = (program("NEG", program.x) for _ in range(3))
    editor = ModelEditor(program.finish(program("TANH", third)))
    for index in editor.sweep():
        if editor.operation(index).type == "TANH":
            editor.substitute(third, second)
            editor.substitute(second, first)
            (result,) = editor.add_operation("RELU", (third,), origins=(index,))
            editor.replace((index,), (result,))
    assert editor.operation(editor.producer(result)).inputs == (first,)
    assert editor.consumers(first).keys() >= {editor.producer(result)}
    verify(editor.finish())


def test_sweep_visits_only_its_types():
    editor = ModelEditor(chain("RELU", "EXP", "TANH", "RELU"))
    assert [editor.operation(index).type for index in editor.sweep({"RELU", "TANH"})] == ["RELU", "TANH", "RELU"]
    assert list(editor.sweep({"SIN"})) == []


def test_added_operations_are_visited_in_next_sweep():
    editor = ModelEditor(chain("RELU", "EXP", "RELU"))
    for index in editor.sweep():
        if editor.operation(index).type == "RELU":
            editor.replace((index,), editor.add_operation("RELU", editor.operation(index).inputs, origins=(index,)))
    assert [editor.operation(index).type for index in editor.sweep()] == ["RELU", "EXP", "RELU"]
    assert [editor.operation(index).origins for index in editor.order()] == [(), ("n2",), ()]
    after = editor.finish()
    verify(after)
    assert [operation.origins for operation in after.operations] == [("n1",), ("n2",), ("n3",)]


def test_operation_reads_substituted_inputs():
    program = Program(x=(2, 3))
    relu, tanh = program("RELU", program.x), program("TANH", program.x)
    editor = ModelEditor(program.finish(program("SUM", relu, tanh, relu)))
    editor.remove((1,))
    editor.substitute(tanh, relu)
    assert editor.operation(2).inputs == (relu, relu, relu)
    assert editor.reader_count(relu) == len(editor.consumers(relu)) == 1
    editor.remove((2,))
    assert editor.reader_count(relu) == 0


def test_outputs_follow_substitutions():
    model = chain("RELU", "EXP")
    editor = ModelEditor(model)
    (result,) = editor.add_operation("EXP", editor.operation(1).inputs, origins=(1,))
    editor.replace((1,), (result,))
    assert editor.outputs == (result,) and editor.is_output(result) and editor.operand(result).name == "v2"


def test_unnamed_results_are_named_between_sweeps():
    editor = ModelEditor(chain("RELU"))
    for index in editor.sweep():
        (result,) = editor.add_operation("TANH", editor.operation(index).inputs, origins=(index,))
    assert editor.operand(result).name == ""
    list(editor.sweep())
    assert editor.operand(result).name


def test_first_reader_follows_operation_order():
    program = Program(x=(2, 3))
    first = program("RELU", program.x)
    last = program("EXP", program.x)
    editor = ModelEditor(program.finish(program("ADD", first, last)))
    assert editor.first_reader(program.x) == 0
    for index in editor.sweep({"EXP"}):
        editor.replace((index,), editor.add_operation("TANH", editor.operation(index).inputs, origins=(index,)))
    for index in editor.sweep({"RELU"}):
        editor.replace((index,), editor.add_operation("SIN", editor.operation(index).inputs, origins=(index,)))
        assert editor.operation(editor.first_reader(program.x)).type == "SIN"
    reading = [index for index in editor.order() if index in editor.consumers(program.x)]
    assert editor.first_reader(program.x) == reading[0]
    assert editor.first_reader(editor.outputs[0]) is None
