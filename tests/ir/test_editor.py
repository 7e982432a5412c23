from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.verify import verify
from tests.ir.passes.program import Program


def test_a_new_operation_reads_the_end_of_a_chain_of_substitutions():
    program = Program(x=(2, 3))
    first, second, third = (program("NEG", program.x) for _ in range(3))
    editor = ModelEditor(program.finish(program("TANH", third)))
    for index in editor.sweep():
        if editor.operation(index).type == "TANH":
            editor.substitute(third, second)
            editor.substitute(second, first)
            (made,) = editor.add_operation("RELU", (third,), origins=(index,))
            editor.replace((index,), (made,))
    assert editor.operation(editor.producer(made)).inputs == (first,)
    assert editor.consumers(first).keys() >= {editor.producer(made)}
    verify(editor.finish())
