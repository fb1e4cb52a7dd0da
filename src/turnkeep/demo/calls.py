"""The tool calls of the conversations: how their tools are declared, and what each call came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnkeep.demo.script import Script
from turnkeep.runner.effects import Policy

CallPlace = tuple[str, int, str]
"""(conversation, turn, call id): which call is meant. A call id may come again in a later turn."""

DECLARED: dict[Policy, str] = {
    # Reading, computing, and writing what is the same the second time: run again after a crash.
    Policy.RERUN: """
        audit_log battery_forecast calculate check_stock compare_files cron deploys export export_channel fetch_page
        find_patient find_referral find_vendor get_ci_log get_ci_status get_config get_delivery_proof get_diff
        get_fx_rates get_hold get_implants get_order get_payment_plan git_log glossary glossary_lookup grep grep_repo
        history inspect_photos inventory list_entities list_issues list_migrations list_objects list_returns list_slots
        list_tables memory_search ocr plural_rules promql query_entities query_metrics read_file read_object run_linter
        run_migration_dry_run run_on_clone run_python run_sql run_tests safety_rule search_in_page search_logs
        search_policy search_stays search_trains track_parcel validate validate_icu wait_for_ci watch weather_normals
        weather_warning web_search whois_ip write_file write_files
        """,
    # Records in a database of one's own, such as bookings and tickets: their effect commits with their result.
    Policy.TRANSACTIONAL: """
        add_note approve_and_book book_slot book_trains close_case close_incident create_automation create_document
        create_issue create_issues create_replacement create_vendor cron_hold hold_slot memory_update pause_payment
        post_batch schedule update_issue
        """,
    # What can't be taken back, and what may do anything: never run twice, the model is told that nobody knows.
    Policy.REPORT: """
        apply_patch break_glass call_service create_tag deploy edit_file git_revert hold_stay kubectl merge_pr notify
        open_pr page post_message psql run send_message set_config ssh start_pipeline status_page submit_review
        update_pr zigbee_reroute
        """,
}
_POLICIES = {name: policy for policy, names in DECLARED.items() for name in names.split()}


def policy_of(tool: str) -> Policy:
    """What a tool of the conversations is declared as."""
    return _POLICIES[tool]


@dataclass(frozen=True)
class RecordedCall:
    """A call of a conversation and its result: what the tool gave, or the error it raised."""

    tool: str
    content: Any
    is_error: bool

    @property
    def policy(self) -> Policy:
        """How its tool is declared."""
        return policy_of(self.tool)

    @property
    def has_effect(self) -> bool:
        """Whether it has to leave a row: a transactional call that has succeeded."""
        return self.policy is Policy.TRANSACTIONAL and not self.is_error


def recorded_calls(scripts: Sequence[Script]) -> dict[CallPlace, RecordedCall]:
    """Every call of the conversations, with what it came to."""
    return {
        (script.external_id, number, message["metadata"]["tool_call_id"]): RecordedCall(
            message["metadata"]["tool_name"], message["content"], message["metadata"].get("is_error", False)
        )
        for script in scripts
        for number, turn in enumerate(script.turns)
        for step in turn.steps
        for message in step.messages
        if message["role"] == "tool"
    }
