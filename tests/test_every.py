from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.every import for_every, for_every_pair, pairwise, valuewise


def test_every_failing_case_is_reported_with_its_arguments():
    tried = []

    @for_every(number=range(3), word=["a", "b"])
    def of_even_numbers(number, word):
        """Record the case; fail for even numbers."""
        tried.append((number, word))
        assert number % 2

    with pytest.raises(ExceptionGroup, match="4 of 6 cases fail") as caught:
        of_even_numbers()
    assert tried == [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b")]
    notes = [error.__notes__ for error in caught.value.exceptions]
    assert notes[0] == ["with number=0, word='a'"] and notes[3] == ["with number=2, word='b'"]
    assert of_even_numbers.__name__ == "of_even_numbers"
    assert of_even_numbers.__doc__ == "Record the case; fail for even numbers."


def test_empty_table_is_an_error():
    with pytest.raises(AssertionError):
        for_every(number=[])


def test_pytest_failures_count_and_skips_hide_none():
    @for_every(number=range(3))
    def of_many(number):
        if number == 2:
            pytest.skip("not here")
        with pytest.raises(ValueError, match="never"):
            pass

    with pytest.raises(BaseExceptionGroup, match="2 of 3 cases fail"):
        of_many()


def test_skipped_if_all_cases_are_skipped():
    @for_every(number=range(2))
    def of_none(number):
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="not here"):
        of_none()


def test_pairwise_combinations_contain_each_pair_of_values_and_are_few():
    tables = {"one": "ab", "two": range(3), "three": {"x": [], "y": []}, "four": [[1], [2], [3]], "five": "cd"}
    chosen = pairwise(tables)
    for (first, ones), (second, others) in combinations(tables.items(), 2):
        assert all(any(each[first] == a and each[second] == b for each in chosen) for a, b in product(ones, others))
    assert len(chosen) <= 12 < 2 * 3 * 2 * 3 * 2
    once = valuewise(tables)
    assert len(once) == 3
    assert all(any(each[name] == value for each in once) for name, values in tables.items() for value in values)
    assert pairwise({"one": "ab"}) == [{"one": "a"}, {"one": "b"}]


tried = []


@for_every_pair(first="abc", second="abc", third="abc")
def test_a_test_of_pairs_checks_some_combinations(first, second, third):
    tried.append((first, second, third))


def test_all_combinations_are_checked_in_the_long_form():
    tried.clear()
    sweep, pairs = test_a_test_of_pairs_checks_some_combinations.pytestmark[0].args[1]
    assert sweep.marks[0].name == "sweep"
    test_a_test_of_pairs_checks_some_combinations(sweep.values[0])
    assert sorted(tried) == sorted(product("abc", repeat=3))
    tried.clear()
    test_a_test_of_pairs_checks_some_combinations(pairs)
    assert 9 <= len(tried) < 15
