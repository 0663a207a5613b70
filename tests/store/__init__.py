"""Tests of the store. What lies outside test modules asserts too, so pytest is told to explain its asserts."""

import pytest

pytest.register_assert_rewrite("tests.store.contract", "tests.store.kit", "tests.store.reference")
