"""Each mistake on the page "What happens when …" has a test that makes it and checks the message.

A new row, or a section without a table, needs an entry here: the beginning of its first cell, and the tests.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.databases import ROOT

PAGE = ROOT / "docs" / "explanation" / "what-happens-when.md"
TESTS: dict[str, list[str]] = {
    # an address leads nowhere
    "`send(…, to=…)` to a queue or a schema": [
        "conf/test_nothing_silent.py::test_sending_to_a_misspelled_address_names_the_near_miss",
        "sending/test_routing.py::test_a_queue_that_is_not_there_is_named",
        "receiving/test_bad_input_addresses.py::test_a_message_to_an_unknown_schema_is_not_sent",
    ],
    "a route to an endpoint whose queue does not exist": [
        "conf/test_nothing_silent.py::test_sending_by_a_wrong_route_names_the_route_and_the_near_miss",
        "conf/test_nothing_silent.py::test_a_check_without_a_database_names_near_misses",
        "conf/test_nothing_silent.py::test_a_check_of_the_database_names_each_queue_that_is_nowhere",
    ],
    "`context.send()` or `context.reply()` to a queue": [
        "receiving/test_processing.py::test_sends_to_a_missing_queue_fail_the_message_and_nothing_is_sent",
        "receiving/test_bad_input_addresses.py::test_replies_to_nowhere_are_failures_of_their_messages_alone",
    ],
    "a reply-to address that is not an address": [
        "receiving/test_bad_input_addresses.py::test_replies_to_nowhere_are_failures_of_their_messages_alone"
    ],
    "no reply-to address at all": [
        "receiving/test_bad_input_addresses.py::test_replies_to_nowhere_are_failures_of_their_messages_alone"
    ],
    "`DEFAULT_SCHEMA`, `SCHEMA_FOR_QUEUE` or an address in the settings": [
        "receiving/test_bad_input_addresses.py::test_settings_with_an_unknown_schema_stop_the_worker_and_the_installer_in_words",
        "receiving/test_bad_input_addresses.py::test_an_error_queue_in_an_unknown_schema_stops_the_worker_and_the_installer",
    ],
    "`ERROR_QUEUE` or `AUDIT_QUEUE` is a queue of the endpoint itself": [
        "receiving/test_bad_input_addresses.py::test_an_endpoint_cannot_be_its_own_error_or_audit_queue"
    ],
    # a call is wrong
    "a message type without a route": ["sending/test_routing.py::test_without_a_route_the_error_names_the_type_and_the_remedy"],
    "an object whose class is not a message type": [
        "sending/test_bad_input.py::test_it_is_refused_in_clear_words_and_nothing_is_written"
    ],
    "a value that JSON cannot hold": ["sending/test_bad_input.py::test_it_is_refused_in_clear_words_and_nothing_is_written"],
    "a field declared `str` holds an `int`": [
        "sending/test_type_checks.py::test_nothing_is_sent_with_a_value_of_another_type",
        "receiving/test_requests.py::test_a_value_of_another_type_is_not_sent",
    ],
    '`delay="60"`, a `deliver_at=` without a time zone': [
        "sending/test_delaying.py::test_what_cannot_be_is_refused_before_anything_is_written"
    ],
    "`delay=` in a process that has neither": [
        "sending/test_delaying.py::test_a_process_that_is_no_endpoint_is_told_of_send_as"
    ],
    "`subscribe()` for an endpoint without a queue": ["sending/test_publish.py::test_who_cannot_subscribe"],
    '`set_concurrency("Sales", "4")`': ["worker/test_live_threads.py::test_asking_for_what_cannot_be_is_refused_by_name"],
    "`sqlqueue_send` with a wrong body": [
        "commands/test_send.py::test_a_wrong_argument_is_said_and_nothing_sent",
        "commands/test_send.py::test_an_unknown_queue_is_one_line",
    ],
    # a request gets no reply
    "the process has no callback queue": [
        "receiving/test_callback_queues_when_needed.py::test_who_may_not_create_uses_what_was_installed",
        "receiving/test_callback_queues_when_needed.py::test_without_rights_on_any_queue_the_error_names_the_remedy",
        "receiving/test_callback_queues_when_needed.py::test_a_worker_without_a_callback_queue_runs_all_the_same",
    ],
    "another host name, or more processes": [
        "receiving/test_callback_leases.py::test_each_process_takes_the_next_queue_that_is_free",
        "packaging/test_first_minutes.py::test_worker_under_another_host_name_works_at_once",
    ],
    "neither `SEND_AS` nor an endpoint of the process": ["receiving/test_requests.py::test_what_is_missing_is_named"],
    "`request()` inside `atomic()`": [
        "receiving/test_requests.py::test_refused_inside_of_a_transaction",
        "receiving/test_requests.py::test_refused_inside_of_a_handler",
    ],
    "no reply arrives in time": [
        "receiving/test_requests.py::test_without_a_reply_the_time_runs_out_and_a_late_one_is_only_counted"
    ],
    # a handler is wrong
    "`@handles` without a message type": [
        "conf/test_nothing_silent.py::test_a_bare_decorator_is_refused_where_it_stands",
        "receiving/test_handlers.py::test_a_class_that_is_no_message_type_and_no_type_at_all_are_refused",
    ],
    "`@handles(Order)`, although the class is not a message type": [
        "conf/test_nothing_silent.py::test_a_class_that_is_no_message_type_is_refused_before_it_decorates"
    ],
    "a handler that is `async def`": [
        "receiving/test_handlers.py::test_an_async_handler_is_refused_with_the_reason",
        "receiving/test_handlers.py::test_what_does_not_take_message_and_context_is_refused",
    ],
    "a handler that returns a coroutine or a generator": [
        "receiving/test_processing.py::test_a_returned_coroutine_is_a_failure_that_is_not_tried_again",
        "receiving/test_bad_handlers.py::test_a_generator_that_is_returned_is_a_failure",
    ],
    "two classes with the same type name": ["messages/test_types.py::test_doubled_names_are_refused"],
    "`HANDLERS` names a module": ["worker/test_first_mistakes.py::test_a_module_of_handlers_that_does_not_exist_is_named"],
    "a module of handlers cannot be imported": [
        "worker/test_first_mistakes.py::test_an_error_in_a_module_of_handlers_comes_with_its_own_traceback"
    ],
    "an endpoint has no handler": [
        "worker/test_first_mistakes.py::test_an_endpoint_without_handlers_is_a_warning_with_the_remedy"
    ],
    "a message has no handler": ["worker/test_first_mistakes.py::test_a_message_without_a_handler_names_those_that_there_are"],
    "a message of another sender holds an `int`": [
        "receiving/test_processing.py::test_what_trying_again_cannot_help_is_not_tried_again"
    ],
    "a message lacks a field that has no default": [
        "receiving/test_processing.py::test_what_trying_again_cannot_help_is_not_tried_again"
    ],
    "a handler catches a database error": [
        "receiving/test_processing.py::test_an_error_that_the_handler_swallowed_inside_the_transaction_is_a_failure"
    ],
    "a handler calls `commit()`": ["receiving/test_bad_handlers.py::test_djangos_own_commit_and_rollback"],
    "a handler calls `sys.exit()`": ["receiving/test_bad_handlers.py::test_a_base_exception_is_its_messages_failure"],
    "a handler ends its process": [
        "worker/test_process_deaths.py::test_after_three_deaths_the_message_is_in_the_error_queue_and_the_others_are_handled"
    ],
    "`RECOVERABILITY` does not name a function": [
        "receiving/test_recoverability.py::test_a_policy_that_is_not_there_is_an_error_that_names_it"
    ],
    "a policy raises": ["receiving/test_recoverability.py::test_of_a_broken_policy_the_default_takes_the_place"],
    # the settings are wrong
    "an unknown key": [
        "conf/test_wrong_values.py::test_wrong_value_gives_one_problem_that_says_what_was_expected",
        "worker/test_first_mistakes.py::test_a_wrong_setting_or_argument_ends_the_worker_with_one_line",
    ],
    "no `ENDPOINTS`": ["worker/test_first_mistakes.py::test_a_wrong_setting_or_argument_ends_the_worker_with_one_line"],
    "two endpoints with the same handlers": [
        "conf/test_nothing_silent.py::test_two_endpoints_with_the_same_handlers_and_no_routes_are_an_error",
        "conf/test_nothing_silent.py::test_a_worker_does_not_start_with_an_error_of_the_checks",
    ],
    "`sqlqueue_app` is missing": ["conf/test_nothing_silent.py::test_the_missing_app_is_named"],
    "the message of a schedule": ["conf/test_checks.py::test_a_schedule_without_a_route_is_a_warning"],
    "SQLite without": ["conf/test_checks.py::test_deferred_transactions_on_sqlite_are_a_warning"],
    "`WAKE_UP` is `True` on SQL Server": ["conf/test_rules.py::test_combination_gives_one_problem"],
    "`METRICS` without": ["packaging/test_wheel.py::test_metrics_without_the_extra_name_what_to_install"],
    "`DEBUG` is `True`": ["worker/test_first_mistakes.py::test_debug_costs_no_memory"],
    "messages go in circles": [
        "receiving/test_bad_input_addresses.py::test_a_circle_of_two_endpoints_ends_in_the_error_queue",
        "receiving/test_forwarding.py::test_messages_do_not_go_round_in_circles",
    ],
    # a delay is too long
    "`delay=` or `deliver_at=` of any call": [
        "receiving/test_bad_input_delays.py::test_nothing_is_sent",
        "receiving/test_bad_input_delays.py::test_a_handler_that_asks_for_it_fails_and_its_neighbours_do_not",
        "receiving/test_bad_input_delays.py::test_the_command_says_so",
    ],
    "`RetryLater` of a": ["receiving/test_recoverability.py::test_of_a_broken_policy_the_default_takes_the_place"],
    "`DELAYED_RETRY_INCREASE`": [
        "receiving/test_bad_input_delays.py::test_settings_hold_ten_years_at_most",
        "receiving/test_bad_input_delays.py::test_delayed_retries_beyond_the_end_of_time_end_in_the_error_queue",
    ],
    "the queue of a subscriber was dropped": [
        "sending/test_publish.py::test_a_queue_that_was_dropped_stops_the_event_and_the_error_names_the_subscription",
        "receiving/test_bad_input_addresses.py"
        "::test_an_event_for_a_queue_that_was_dropped_is_published_when_the_subscription_is_gone",
    ],
    # a requester died before the reply
    "still there": [
        "receiving/test_bad_input_callbacks.py"
        "::test_a_reply_waits_in_the_queue_of_the_dead_until_the_next_process_takes_it_over"
    ],
    "dropped, by a worker": [
        "receiving/test_bad_input_callbacks.py::test_a_reply_to_a_queue_that_was_removed_is_a_failure_of_the_request_alone"
    ],
    # the environment is wrong
    "the database, user or password": [
        "commands/test_surroundings.py::test_a_wrong_database_user_or_password_on_postgresql",
        "commands/test_surroundings.py::test_a_sqlite_file_that_cannot_be_opened_or_is_none",
    ],
    "the database is down": [
        "worker/test_outages.py::test_a_database_that_is_down_at_the_start_is_waited_for",
        "commands/test_surroundings.py::test_a_database_that_is_down",
    ],
    "the user lacks a right": ["commands/test_surroundings.py::test_a_role_without_rights"],
    "another connection holds a lock": ["commands/test_surroundings.py::test_a_locked_sqlite_file"],
    "tables are missing": [
        "worker/test_command.py::test_a_missing_table_is_exit_code_1",
        "worker/test_outages.py::test_missing_tables_end_the_start_with_their_names_and_the_remedy",
        "worker/test_outages.py::test_the_tables_of_the_app_are_made_by_migrate",
    ],
    "the driver of `ENGINE`": ["commands/test_surroundings.py::test_an_engine_without_its_driver"],
    "`run_sqlqueue_pipeline` without the extra": [
        "commands/test_pipeline.py::test_without_the_extra_it_says_what_to_install"
    ],
    # processes are killed, or started twice
    "`kill -9`, or a power cut": [
        "worker/test_processes.py::test_kill_9_in_the_middle_of_a_handler_loses_nothing_and_repeats_no_row",
        "status/test_dead_instances.py::test_rows_of_long_dead_processes_are_deleted",
    ],
    "the same signal comes again": ["worker/test_signals.py::test_the_second_signal_aborts"],
    "a second signal comes": ["worker/test_signals.py::test_the_second_signal_aborts"],
    "a thread of a worker dies": ["worker/test_supervisor.py::test_a_process_of_which_a_thread_died_is_started_again"],
    "an endpoint runs in several processes": [
        "worker/test_supervisor.py::test_several_processes_share_the_work_and_end_when_nothing_is_left"
    ],
    # a clock is wrong by an hour
    "delays, delayed retries, `deliver_at=`, lifetimes": [
        "worker/test_bad_input_clocks.py::test_delays_and_lifetimes_are_counted_by_the_database",
        "worker/test_bad_input_clocks.py::test_delayed_retries_are_counted_by_the_database",
    ],
    "timeouts of `request()`": ["worker/test_bad_input_clocks.py::test_requests_and_their_time_outs_know_no_wall_clock"],
    "heartbeats and all other": [
        "worker/test_bad_input_clocks.py::test_a_worker_stays_alive_when_its_clock_jumps",
        "worker/test_background_jobs.py::test_jobs_go_on_when_the_clock_of_the_machine_jumps",
    ],
    "waiting delayed messages and retries": [
        "worker/test_bad_input_clocks.py::test_what_waits_comes_earlier_or_later_by_the_jump_and_the_mover_goes_on"
    ],
    "messages with a lifetime": ["worker/test_bad_input_clocks.py::test_a_lifetime_ends_earlier_or_later_by_the_jump"],
    "callback queues": [
        "worker/test_bad_input_clocks.py::test_a_process_keeps_its_callback_queue_over_a_jump",
        "worker/test_bad_input_clocks.py"
        "::test_who_starts_before_the_next_heartbeat_may_take_a_queue_over_and_the_requests_are_told",
        "worker/test_bad_input_clocks.py"
        "::test_the_queue_of_a_dead_process_is_free_an_hour_later_when_the_clock_was_put_back",
    ],
    "[recurring messages]": ["worker/test_bad_input_clocks.py::test_recurring_messages_are_sent_once_for_each_tick"],
    "`DEDUPLICATE_FOR`": ["worker/test_bad_input_clocks.py::test_handled_messages_are_remembered_over_a_jump"],
    "queue samples": ["worker/test_bad_input_clocks.py::test_queues_are_sampled_on_after_a_jump"],
}  # fmt: skip


def mistakes() -> list[str]:
    """The first cell of each row, and the headings of sections without a table."""
    found = []
    for section in PAGE.read_text("utf-8").split("\n## … ")[1:]:
        heading, *lines = section.splitlines()
        bodies = re.findall(r"^\|[-|]+\|\n((?:\|.*\n?)+)", "\n".join(lines), re.MULTILINE)
        rows = [row for body in bodies for row in re.findall(r"^\| (.+?) \|", body, re.MULTILINE)]
        found += rows or [heading]
    return found


@cache
def names_in(file: str) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", (ROOT / "tests" / file).read_text("utf-8"), re.MULTILINE))


def test_page_lists_mistakes() -> None:
    assert len(mistakes()) >= 30


@pytest.mark.parametrize("mistake", mistakes())
def test_every_mistake_of_the_page_has_a_test(mistake: str) -> None:
    entries = [tests for beginning, tests in TESTS.items() if mistake.startswith(beginning)]
    assert len(entries) == 1, "the page has a row for which TESTS has no entry, or two"
    for test in entries[0]:
        file, _, name = test.partition("::")
        assert name in names_in(file), test


def test_every_entry_matches_one_mistake_of_the_page() -> None:
    rows = mistakes()
    assert [beginning for beginning in TESTS if sum(row.startswith(beginning) for row in rows) != 1] == []
