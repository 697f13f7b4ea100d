package ui

import "strings"

// kindGroups are the kinds of entries of the audit log with what they mean, by subject, in the
// order of the filter.
var kindGroups = []kindGroup{
	{"Images and tags", []field{
		{"push_repo", "pushed"}, {"pull_repo", "pulled"}, {"push_repo_failed", "push was refused"}, {"pull_repo_failed", "pull was refused"},
		{"create_tag", "created the tag"}, {"move_tag", "moved the tag"}, {"delete_tag", "deleted the tag"}, {"delete_tag_failed", "deletion of the tag was refused"},
		{"revert_tag", "restored the tag"}, {"change_tag_expiration", "changed when the tag expires"}, {"change_tag_protection", "changed a rule that protects tags"},
		{"change_autoprune_exception", "changed whether the repository is an exception"}, {"free_space", "let the least recently used tags be deleted"},
		{"change_tag_immutability", "changed whether the tag is immutable"}, {"change_tag_labels", "changed which labels decide about tags"},
		{"delete_manifest", "deleted the manifest"}, {"delete_blob", "deleted the blob"},
	}},
	{"Repositories and namespaces", []field{
		{"create_repo", "created the repository"}, {"delete_repo", "deleted the repository"}, {"restore_repo", "restored the repository"}, {"purge_repo", "deleted the repository for good"},
		{"change_repo_visibility", "changed who may see the repository"}, {"org_create", "created the namespace"}, {"org_delete", "deleted the namespace"},
		{"org_restore", "restored the namespace"}, {"org_purge", "deleted the namespace for good"},
	}},
	{"Pruning", []field{
		{"autoprune_tag_delete", "a policy deleted the tag"}, {"run_autoprune", "asked for a run of pruning"}, {"undo_autoprune", "took a run of pruning back"}, {"change_autoprune_exemptions", "let policies select restored tags again"},
		{"announce_autoprune", "a policy announced deletions"}, {"ask_autoprune", "a policy asks for an approval"}, {"approve_autoprune", "approved deletions of a policy"},
		{"rest_autoprune", "a policy rests"}, {"confirm_autoprune", "confirmed warnings of a policy"},
		{"observe_autoprune", "a policy that only observes found tags"}, {"create_namespace_autoprune_policy", "created a policy of the namespace"},
		{"update_namespace_autoprune_policy", "changed a policy of the namespace"}, {"delete_namespace_autoprune_policy", "deleted a policy of the namespace"},
		{"create_repository_autoprune_policy", "created a policy of the repository"}, {"update_repository_autoprune_policy", "changed a policy of the repository"},
		{"delete_repository_autoprune_policy", "deleted a policy of the repository"}, {"change_default_autoprune_policy", "changed a default policy"},
	}},
	{"Deployed images", []field{
		{"report_holds", "reported what is deployed"}, {"hold_reporter_silent", "a reporter is silent"}, {"hold_reporter_ended", "a reporter’s holds have ended"}, {"delete_hold_reporter", "deleted a reporter"},
	}},
	{"Quotas", []field{
		{"org_create_quota", "gave a quota"}, {"org_change_quota", "changed a quota"}, {"org_delete_quota", "took a quota away"}, {"org_create_quota_limit", "added a limit to a quota"},
		{"org_change_quota_limit", "changed a limit of a quota"}, {"org_delete_quota_limit", "removed a limit of a quota"}, {"recount_quota", "had a quota counted again"},
	}},
	{"Accounts and roles", []field{
		{"login_success", "logged in"}, {"login_failure", "failed to log in"}, {"logout_success", "logged out"}, {"user_create", "created an account"}, {"user_delete", "deleted an account"},
		{"user_enable", "enabled an account"}, {"user_disable", "disabled an account"}, {"change_user", "changed an account"}, {"user_change_password", "changed a password"},
		{"create_app_specific_token", "made a token"}, {"revoke_app_specific_token", "revoked a token"}, {"user_end_log_ins", "ended all log-ins of an account"}, {"rotate_token_keys", "replaced the keys of tokens"},
		{"create_robot", "created a robot"}, {"delete_robot", "deleted a robot"}, {"regenerate_robot_token", "gave a robot a new secret"},
		{"create_robot_federation", "let a pipeline log in as a robot"}, {"delete_robot_federation", "let no pipeline log in as a robot"}, {"federated_robot_token_exchange", "a pipeline logged in as a robot"},
		{"org_create_team", "created a team"}, {"org_delete_team", "deleted a team"}, {"org_set_team_role", "changed a team’s role"}, {"org_set_team_description", "changed a team’s description"},
		{"org_add_team_member", "added a member to a team"}, {"org_remove_team_member", "removed a member from a team"}, {"enable_team_sync", "let groups decide who is in a team"},
		{"disable_team_sync", "let groups no longer decide who is in a team"}, {"add_repo_permission", "gave a role"}, {"change_repo_permission", "changed a role"}, {"delete_repo_permission", "took a role away"},
	}},
	{"Operation", []field{
		{"run_gc", "ran garbage collection"}, {"retry_gc", "retried failed reviews"}, {"run_check", "checked the store"}, {"adopt_store", "adopted a store"},
		{"run_backup", "made a backup"}, {"run_restore", "restored a backup"}, {"run_import", "imported another registry"}, {"finish_import", "finished the import"},
		{"run_loose_foreign_keys", "ran loose foreign keys"}, {"export_logs", "exported the log"}, {"change_maintenance", "did maintenance"},
		{"create_webhook", "created a webhook"}, {"update_webhook", "changed a webhook"}, {"delete_webhook", "deleted a webhook"}, {"redeliver_webhook", "sent notices of a webhook again"},
	}},
}

// wordsOfKinds has the words of each kind.
var wordsOfKinds = func() map[string]string {
	words := make(map[string]string)
	for _, group := range kindGroups {
		for _, kind := range group.Kinds {
			words[kind.Name] = kind.Value
		}
	}
	return words
}()

// kindWords says what a kind of entry means. A newer version may have written kinds without words.
func kindWords(kind string) string {
	if words, ok := wordsOfKinds[kind]; ok {
		return words
	}
	return strings.ReplaceAll(kind, "_", " ")
}
