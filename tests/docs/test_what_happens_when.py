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
        "sending/test_routing.py::test_missing_queue_is_named",
        "receiving/test_bad_input_addresses.py::test_message_to_unknown_schema_is_not_sent",
    ],
    "a route to an endpoint whose queue does not exist": [
        "conf/test_nothing_silent.py::test_sending_by_a_wrong_route_names_the_route_and_the_near_miss",
        "conf/test_nothing_silent.py::test_a_check_without_a_database_names_near_misses",
        "conf/test_nothing_silent.py::test_database_check_names_each_missing_queue",
    ],
    "`context.send()` or `context.reply()` to a queue": [
        "receiving/test_processing.py::test_send_to_missing_queue_fails_the_message_and_sends_nothing",
        "receiving/test_bad_input_addresses.py::test_reply_to_nowhere_fails_only_its_own_message",
    ],
    "a reply-to address that is not an address": [
        "receiving/test_bad_input_addresses.py::test_reply_to_nowhere_fails_only_its_own_message"
    ],
    "no reply-to address at all": [
        "receiving/test_bad_input_addresses.py::test_reply_to_nowhere_fails_only_its_own_message"
    ],
    "`DEFAULT_SCHEMA`, `SCHEMA_FOR_QUEUE` or an address in the settings": [
        "receiving/test_bad_input_addresses.py::test_unknown_schema_in_settings_stops_worker_and_installer",
        "receiving/test_bad_input_addresses.py::test_error_queue_in_unknown_schema_stops_worker_and_installer",
    ],
    "`ERROR_QUEUE` or `AUDIT_QUEUE` is a queue of the endpoint itself": [
        "receiving/test_bad_input_addresses.py::test_endpoint_cannot_be_its_own_error_or_audit_queue"
    ],
    # a call is wrong
    "a message type without a route": ["sending/test_routing.py::test_missing_route_is_reported_with_type_and_remedy"],
    "an object whose class is not a message type": [
        "sending/test_bad_input.py::test_invalid_call_is_refused_and_nothing_is_written"
    ],
    "a value that JSON cannot hold": ["sending/test_bad_input.py::test_invalid_call_is_refused_and_nothing_is_written"],
    "a field declared `str` holds an `int`": [
        "sending/test_type_checks.py::test_value_of_another_type_is_not_sent",
        "receiving/test_requests.py::test_value_of_another_type_is_not_sent",
    ],
    '`delay="60"`, a `deliver_at=` without a time zone': [
        "sending/test_delaying.py::test_invalid_delay_is_refused_before_anything_is_written"
    ],
    "`delay=` in a process that has neither": [
        "sending/test_delaying.py::test_error_names_send_as_without_an_endpoint"
    ],
    "`subscribe()` for an endpoint without a queue": ["sending/test_publish.py::test_invalid_subscription_is_refused"],
    '`set_concurrency("Sales", "4")`': ["worker/test_live_threads.py::test_invalid_request_is_refused_with_its_value"],
    "`sqlqueue_send` with a wrong body": [
        "commands/test_send.py::test_wrong_argument_is_reported_and_nothing_is_sent",
        "commands/test_send.py::test_an_unknown_queue_is_one_line",
    ],
    # a request gets no reply
    "the process has no callback queue": [
        "receiving/test_callback_queues_when_needed.py::test_role_without_create_uses_installed_queue",
        "receiving/test_callback_queues_when_needed.py::test_error_names_the_remedy_without_rights_on_any_queue",
        "receiving/test_callback_queues_when_needed.py::test_worker_runs_without_callback_queue",
    ],
    "another host name, or more processes": [
        "receiving/test_callback_leases.py::test_each_process_takes_the_next_free_queue",
        "packaging/test_first_minutes.py::test_worker_under_another_host_name_works_at_once",
    ],
    "neither `SEND_AS` nor an endpoint of the process": ["receiving/test_requests.py::test_missing_prerequisite_is_named"],
    "`request()` inside `atomic()`": [
        "receiving/test_requests.py::test_request_is_refused_inside_a_transaction",
        "receiving/test_requests.py::test_request_is_refused_inside_a_handler",
    ],
    "no reply arrives in time": [
        "receiving/test_requests.py::test_request_times_out_and_a_late_reply_is_only_logged"
    ],
    # a handler is wrong
    "`@handles` without a message type": [
        "conf/test_nothing_silent.py::test_bare_decorator_is_refused_at_its_line",
        "receiving/test_handlers.py::test_unregistered_class_or_missing_type_is_refused",
    ],
    "`@handles(Order)`, although the class is not a message type": [
        "conf/test_nothing_silent.py::test_a_class_that_is_no_message_type_is_refused_before_it_decorates"
    ],
    "a handler that is a generator": [
        "receiving/test_async_handlers.py::test_asynchronous_generator_is_refused",
        "receiving/test_async_handlers.py::test_generator_is_refused",
        "receiving/test_handlers.py::test_callable_with_other_parameters_is_refused",
    ],
    "a handler that returns a coroutine or a generator": [
        "receiving/test_processing.py::test_returned_coroutine_is_a_failure_without_retries",
        "receiving/test_bad_handlers.py::test_returned_generator_is_a_failure",
    ],
    "two classes with the same type name": ["messages/test_types.py::test_duplicate_names_are_refused"],
    "`HANDLERS` names a module": ["worker/test_first_mistakes.py::test_missing_handler_module_is_named"],
    "a module of handlers cannot be imported": [
        "worker/test_first_mistakes.py::test_error_in_a_handler_module_keeps_its_traceback"
    ],
    "an endpoint has no handler": [
        "worker/test_first_mistakes.py::test_endpoint_without_handlers_logs_a_warning_with_the_remedy"
    ],
    "a message has no handler": ["worker/test_first_mistakes.py::test_message_without_handler_names_the_existing_ones"],
    "a message of another sender holds an `int`": [
        "receiving/test_processing.py::test_unrecoverable_message_is_not_retried"
    ],
    "a message lacks a field that has no default": [
        "receiving/test_processing.py::test_unrecoverable_message_is_not_retried"
    ],
    "a handler catches a database error": [
        "receiving/test_processing.py::test_swallowed_database_error_is_a_failure"
    ],
    "a handler calls `commit()`": ["receiving/test_bad_handlers.py::test_handler_cannot_call_djangos_commit_or_rollback"],
    "a handler calls `sys.exit()`": ["receiving/test_bad_handlers.py::test_base_exception_fails_the_message"],
    "a handler ends its process": [
        "worker/test_process_deaths.py::test_deadly_message_moves_after_three_crashes_and_others_are_handled"
    ],
    "a policy raises": ["receiving/test_recoverability.py::test_default_policy_replaces_a_broken_one"],
    # the settings are wrong
    "an unknown key": [
        "conf/test_wrong_values.py::test_wrong_value_gives_one_problem_with_the_expectation",
        "worker/test_first_mistakes.py::test_wrong_setting_or_argument_ends_the_worker_with_one_line",
    ],
    "no `ENDPOINTS`": ["worker/test_first_mistakes.py::test_wrong_setting_or_argument_ends_the_worker_with_one_line"],
    "two endpoints with the same handlers": [
        "conf/test_nothing_silent.py::test_two_endpoints_with_the_same_handlers_and_no_routes_are_an_error",
        "conf/test_nothing_silent.py::test_worker_does_not_start_with_a_check_error",
    ],
    "`sqlqueue_app` is missing": ["conf/test_nothing_silent.py::test_the_missing_app_is_named"],
    "the message of a schedule": ["conf/test_checks.py::test_a_schedule_without_a_route_is_a_warning"],
    "`HANDLERS`, `MIDDLEWARE` or `RECOVERABILITY` names code": [
        "conf/test_nothing_silent.py::test_what_a_worker_cannot_import_is_reported_once",
        "receiving/test_recoverability.py::test_missing_policy_is_reported_by_name",
    ],
    "`RETRIES` or `RATE_LIMITS` of an endpoint names a type": [
        "conf/test_nothing_silent.py::test_entry_for_a_type_without_handler_is_reported"
    ],
    "SQLite without": ["conf/test_checks.py::test_deferred_transactions_on_sqlite_are_a_warning"],
    "`WAKE_UP` is `True` on SQL Server": ["conf/test_rules.py::test_combination_gives_one_problem"],
    "`METRICS` without": ["packaging/test_wheel.py::test_metrics_without_the_extra_name_what_to_install"],
    "`DEBUG` is `True`": ["worker/test_first_mistakes.py::test_debug_mode_uses_no_extra_memory"],
    "messages go in circles": [
        "receiving/test_bad_input_addresses.py::test_circle_of_two_endpoints_ends_in_error_queue",
        "receiving/test_forwarding.py::test_messages_are_not_forwarded_in_circles",
    ],
    # a delay is too long
    "`delay=` or `deliver_at=` of any call": [
        "receiving/test_bad_input_delays.py::test_message_with_excessive_delay_is_not_sent",
        "receiving/test_bad_input_delays.py::test_excessive_delay_fails_only_its_own_message",
        "receiving/test_bad_input_delays.py::test_command_reports_excessive_delay",
    ],
    "`RetryLater` of a": ["receiving/test_recoverability.py::test_default_policy_replaces_a_broken_one"],
    "`DELAYED_RETRY_INCREASE`": [
        "receiving/test_bad_input_delays.py::test_settings_allow_delays_of_at_most_ten_years",
        "receiving/test_bad_input_delays.py::test_excessive_delayed_retry_ends_in_error_queue",
    ],
    "the queue of a subscriber was dropped": [
        "sending/test_publish.py::test_dropped_queue_stops_the_event_and_the_error_names_the_subscription",
        "receiving/test_bad_input_addresses.py"
        "::test_event_for_dropped_queue_is_published_after_unsubscribing",
    ],
    # a requester died before the reply
    "still there": [
        "receiving/test_bad_input_callbacks.py"
        "::test_next_process_takes_over_a_reply_to_a_dead_process"
    ],
    "dropped, by a worker": [
        "receiving/test_bad_input_callbacks.py::test_reply_to_removed_queue_fails_only_its_request"
    ],
    # the environment is wrong
    "the database, user or password": [
        "commands/test_surroundings.py::test_a_wrong_database_user_or_password_on_postgresql",
        "commands/test_surroundings.py::test_a_sqlite_file_that_cannot_be_opened_or_is_none",
    ],
    "the database is down": [
        "worker/test_outages.py::test_worker_waits_for_an_unavailable_database_at_start",
        "commands/test_surroundings.py::test_a_database_that_is_down",
    ],
    "the user lacks a right": [
        "commands/test_surroundings.py::test_a_role_without_rights",
        "commands/test_surroundings.py::test_a_retry_without_rights",
        "commands/test_surroundings.py::test_a_pipeline_without_rights",
    ],
    "another connection holds a lock": ["commands/test_surroundings.py::test_a_locked_sqlite_file"],
    "tables are missing": [
        "worker/test_command.py::test_missing_table_is_exit_code_1",
        "worker/test_outages.py::test_missing_tables_end_the_start_with_names_and_remedy",
        "worker/test_outages.py::test_missing_app_tables_are_reported_with_migrate",
    ],
    "the driver of `ENGINE`": ["commands/test_surroundings.py::test_an_engine_without_its_driver"],
    "`run_sqlqueue_pipeline` without the extra": [
        "commands/test_pipeline.py::test_missing_extra_is_reported_with_its_name"
    ],
    # processes are killed, or started twice
    "`kill -9`, or a power cut": [
        "worker/test_processes.py::test_kill_9_inside_a_handler_loses_nothing_and_repeats_no_row",
        "status/test_dead_instances.py::test_rows_of_long_dead_processes_are_deleted",
    ],
    "the same signal comes again": ["worker/test_signals.py::test_second_signal_aborts"],
    "a second signal comes": ["worker/test_signals.py::test_second_signal_aborts"],
    "a thread of a worker dies": ["worker/test_supervisor.py::test_process_with_a_dead_thread_is_restarted"],
    "an endpoint runs in several processes": [
        "worker/test_supervisor.py::test_several_processes_share_the_work_and_end_when_empty"
    ],
    # a clock is wrong by an hour
    "delays, delayed retries, `deliver_at=`, expiry": [
        "worker/test_bad_input_clocks.py::test_database_clock_measures_delays_and_lifetimes",
        "worker/test_bad_input_clocks.py::test_database_clock_measures_delayed_retries",
    ],
    "timeouts of `request()`": ["worker/test_bad_input_clocks.py::test_requests_and_time_outs_ignore_the_wall_clock"],
    "heartbeats and all other": [
        "worker/test_bad_input_clocks.py::test_worker_stays_alive_when_its_clock_jumps",
        "worker/test_background_jobs.py::test_jobs_continue_when_the_system_clock_jumps",
    ],
    "waiting delayed messages and retries": [
        "worker/test_bad_input_clocks.py::test_jump_shifts_delayed_messages_and_the_mover_continues"
    ],
    "messages with an expiry": ["worker/test_bad_input_clocks.py::test_jump_shifts_the_end_of_a_lifetime"],
    "callback queues": [
        "worker/test_bad_input_clocks.py::test_process_keeps_its_callback_queue_over_a_jump",
        "worker/test_bad_input_clocks.py"
        "::test_new_process_may_take_over_a_queue_after_a_jump",
        "worker/test_bad_input_clocks.py"
        "::test_queue_of_dead_process_is_free_an_hour_after_clock_went_back",
    ],
    "[recurring messages]": ["worker/test_bad_input_clocks.py::test_recurring_messages_are_sent_once_per_tick"],
    "`DEDUPLICATE_FOR`": ["worker/test_bad_input_clocks.py::test_handled_messages_are_remembered_over_a_jump"],
    "queue samples": ["worker/test_bad_input_clocks.py::test_sampling_continues_after_a_jump"],
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
