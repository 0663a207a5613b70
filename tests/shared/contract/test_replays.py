"""What the engine promises of events that a queue hands out once more, on PostgreSQL: tests of the same name."""

from tests.engine.test_replays import (  # noqa: F401
    test_a_range_comes_again_before_what_is_new_and_the_queue_stays_where_it_is,
    test_consumers_that_take_and_acknowledge_meanwhile_get_each_range_once,
    test_not_more_is_put_back_than_consumers_take,
    test_under_a_mark_it_is_done_once_whoever_has_taken_it_meanwhile,
    test_what_is_held_comes_again_or_was_set_aside_is_left_out,
)
