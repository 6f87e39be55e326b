//! Databases of rules: every scenario on SQLite and on a real PostgreSQL.

mod copy;
mod killed;
mod mirror;
mod nodes;
mod postgres;
mod scenario;
mod sets;
mod sqlite;
mod standby;
mod tls;

/// One test for each scenario on a database; `$start` gives its address and what must outlive the test.
macro_rules! stamp {
    ($start:expr; $($name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let Some((address, _server)) = $start else { return };
                crate::rules_db::scenario::$name(&address).await;
            }
        )*
    };
}
pub(crate) use stamp;

macro_rules! stamp_all {
    ($start:expr) => {
        crate::rules_db::stamp! {
            $start;
            every_change_has_a_number_and_an_entry_in_the_log,
            of_two_who_saw_the_same_version_one_is_refused,
            writers_at_once_lose_no_change_and_leave_no_gap,
            one_bad_edit_among_many_changes_nothing,
            one_change_is_reverted_by_a_new_one,
            things_are_paged_by_name_within_a_prefix,
            a_preview_says_what_an_edit_would_do_and_writes_nothing,
            one_thing_has_a_history_of_its_own,
            bans_that_are_over_are_removed_in_small_batches,
            an_old_log_is_pruned_in_batches_and_nodes_that_are_behind_read_everything_again,
            automatic_bans_leave_the_log_before_other_entries_and_the_feed_goes_on,
            the_switch_and_the_allow_list_are_changes_like_any_other,
            ten_that_open_at_once_do_not_fight,
            a_change_is_seen_by_three_nodes_within_a_second,
            ten_thousand_changes_in_batches_lose_none,
            a_version_from_another_history_is_reported,
            no_acknowledged_edit_is_lost_when_writers_are_killed,
            an_import_is_one_change_that_one_rollback_reverts,
            an_import_in_several_batches_is_reverted_whole,
            a_set_is_reverted_only_if_nothing_of_it_has_changed_since,
            a_set_that_is_partly_pruned_is_not_reverted,
            a_ramp_is_advanced_by_one_node_and_reverted_with_its_apply,
        }
    };
}
pub(crate) use stamp_all;
