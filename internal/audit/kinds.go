package audit

import "slices"

// Kind says what kind of event an entry records. Events that Quay logs too have Quay's
// names, so that tools made for Quay's log understand Purser's.
type Kind string

// Kinds with Quay's names.
const (
	PushRepo        Kind = "push_repo"
	PushRepoFailed  Kind = "push_repo_failed"
	PullRepo        Kind = "pull_repo"
	PullRepoFailed  Kind = "pull_repo_failed"
	CreateRepo      Kind = "create_repo"
	DeleteRepo      Kind = "delete_repo"
	CreateTag       Kind = "create_tag"
	MoveTag         Kind = "move_tag"
	DeleteTag       Kind = "delete_tag"
	DeleteTagFailed Kind = "delete_tag_failed"
	RevertTag       Kind = "revert_tag" // a tag was restored
	// ChangeTagExpiration: a tag's expiration date was set or removed.
	ChangeTagExpiration Kind = "change_tag_expiration"
	// AutopruneTagDelete: a policy deleted a tag.
	AutopruneTagDelete Kind = "autoprune_tag_delete"

	CreateNamespacePolicy  Kind = "create_namespace_autoprune_policy"
	UpdateNamespacePolicy  Kind = "update_namespace_autoprune_policy"
	DeleteNamespacePolicy  Kind = "delete_namespace_autoprune_policy"
	CreateRepositoryPolicy Kind = "create_repository_autoprune_policy"
	UpdateRepositoryPolicy Kind = "update_repository_autoprune_policy"
	DeleteRepositoryPolicy Kind = "delete_repository_autoprune_policy"

	CreateNamespace Kind = "org_create"
	DeleteNamespace Kind = "org_delete"

	CreateQuota      Kind = "org_create_quota"
	ChangeQuota      Kind = "org_change_quota"
	DeleteQuota      Kind = "org_delete_quota"
	CreateQuotaLimit Kind = "org_create_quota_limit"
	ChangeQuotaLimit Kind = "org_change_quota_limit"
	DeleteQuotaLimit Kind = "org_delete_quota_limit"

	AddPermission    Kind = "add_repo_permission"
	ChangePermission Kind = "change_repo_permission"
	DeletePermission Kind = "delete_repo_permission"
	ChangeVisibility Kind = "change_repo_visibility"

	CreateUser     Kind = "user_create"
	DeleteUser     Kind = "user_delete"
	EnableUser     Kind = "user_enable"
	DisableUser    Kind = "user_disable"
	ChangePassword Kind = "user_change_password"

	CreateRobot          Kind = "create_robot"
	DeleteRobot          Kind = "delete_robot"
	RegenerateRobotToken Kind = "regenerate_robot_token"
	CreateToken          Kind = "create_app_specific_token"
	RevokeToken          Kind = "revoke_app_specific_token"

	// CreateTeam: a team of a namespace was created.
	CreateTeam             Kind = "org_create_team"
	DeleteTeam             Kind = "org_delete_team"
	ChangeTeamRole         Kind = "org_set_team_role"
	ChangeTeamDescription  Kind = "org_set_team_description"
	AddTeamMember          Kind = "org_add_team_member"
	RemoveTeamMember       Kind = "org_remove_team_member"
	EnableTeamSync         Kind = "enable_team_sync"
	DisableTeamSync        Kind = "disable_team_sync"
	CreateRobotFederation  Kind = "create_robot_federation"
	DeleteRobotFederation  Kind = "delete_robot_federation"
	ExchangeFederatedToken Kind = "federated_robot_token_exchange"

	LoginSuccess  Kind = "login_success"
	LoginFailure  Kind = "login_failure"
	LogoutSuccess Kind = "logout_success"
)

// These are Purser's own kinds, for events for which Quay has no name.
const (
	DeleteManifest    Kind = "delete_manifest"
	DeleteBlob        Kind = "delete_blob"
	RunAutoprune      Kind = "run_autoprune" // a client asked for a run
	UndoAutoprune     Kind = "undo_autoprune"
	ChangeExemptions  Kind = "change_autoprune_exemptions" // somebody let policies select restored tags again
	ChangeException   Kind = "change_autoprune_exception"  // a repository became an exception, in which only its own policies delete, or that ended
	FreeSpace         Kind = "free_space"                  // somebody let the least recently used tags be deleted, to free bytes
	AnnounceAutoprune Kind = "announce_autoprune"          // a run announced a policy in its grace period
	AskAutoprune      Kind = "ask_autoprune"               // a policy would delete more than its cap
	ApproveAutoprune  Kind = "approve_autoprune"           // somebody lets it
	RestAutoprune     Kind = "rest_autoprune"              // a policy rests, until its warnings are confirmed or its reporters report
	ConfirmAutoprune  Kind = "confirm_autoprune"           // somebody has confirmed warnings
	ObserveAutoprune  Kind = "observe_autoprune"           // a run found other tags that would be deleted
	ChangeProtection  Kind = "change_tag_protection"
	ChangeImmutable   Kind = "change_tag_immutability" // a tag was made immutable, or that was undone
	ChangeTagLabels   Kind = "change_tag_labels"       // which labels of images decide about tags
	ChangeDefault     Kind = "change_default_autoprune_policy"
	RunGC             Kind = "run_gc"
	RetryGC           Kind = "retry_gc" // failed reviews were put back into the queue
	RunCheck          Kind = "run_check"
	AdoptStore        Kind = "adopt_store"
	RunBackup         Kind = "run_backup"
	RunRestore        Kind = "run_restore"
	RunImport         Kind = "run_import"
	FinishImport      Kind = "finish_import"
	RunLooseKeys      Kind = "run_loose_foreign_keys"
	ExportLog         Kind = "export_logs"
	ChangeMaintenance Kind = "change_maintenance"
	CreateWebhook     Kind = "create_webhook"
	UpdateWebhook     Kind = "update_webhook" // also written when the registry disables a webhook
	DeleteWebhook     Kind = "delete_webhook"
	RedeliverWebhook  Kind = "redeliver_webhook" // notices were queued to be sent again
	ChangeUser        Kind = "change_user"
	RotateKeys        Kind = "rotate_token_keys"
	EndLogIns         Kind = "user_end_log_ins" // sessions and refresh tokens, and perhaps personal tokens
	// ReportHolds: a reporter changed which digests it holds.
	ReportHolds        Kind = "report_holds"
	HoldReporterSilent Kind = "hold_reporter_silent" // no report came for half of the lease
	HoldReporterEnded  Kind = "hold_reporter_ended"  // the lease is over, so its holds have ended
	DeleteHoldReporter Kind = "delete_hold_reporter"
	RecountQuota       Kind = "recount_quota"
	// RestoreRepo and RestoreNamespace: something was brought back from the trash.
	RestoreRepo      Kind = "restore_repo"
	RestoreNamespace Kind = "org_restore"
	// PurgeRepo and PurgeNamespace: something in the trash was deleted for good.
	PurgeRepo      Kind = "purge_repo"
	PurgeNamespace Kind = "org_purge"
)

// Kinds returns all kinds that this version of Purser writes, those with Quay's names
// first. If a newer version has written to the same log, the log may contain other kinds.
func Kinds() []Kind { return slices.Clone(kinds) }

var kinds = []Kind{
	PushRepo, PushRepoFailed, PullRepo, PullRepoFailed, CreateRepo, DeleteRepo,
	CreateTag, MoveTag, DeleteTag, DeleteTagFailed, RevertTag, ChangeTagExpiration, AutopruneTagDelete,
	CreateNamespacePolicy, UpdateNamespacePolicy, DeleteNamespacePolicy,
	CreateRepositoryPolicy, UpdateRepositoryPolicy, DeleteRepositoryPolicy,
	CreateNamespace, DeleteNamespace,
	CreateQuota, ChangeQuota, DeleteQuota, CreateQuotaLimit, ChangeQuotaLimit, DeleteQuotaLimit,
	AddPermission, ChangePermission, DeletePermission, ChangeVisibility,
	CreateUser, DeleteUser, EnableUser, DisableUser, ChangePassword,
	CreateRobot, DeleteRobot, RegenerateRobotToken, CreateToken, RevokeToken,
	CreateTeam, DeleteTeam, ChangeTeamRole, ChangeTeamDescription, AddTeamMember, RemoveTeamMember,
	EnableTeamSync, DisableTeamSync, CreateRobotFederation, DeleteRobotFederation, ExchangeFederatedToken,
	LoginSuccess, LoginFailure, LogoutSuccess,
	DeleteManifest, DeleteBlob, RunAutoprune, UndoAutoprune, ChangeExemptions, ChangeException, FreeSpace, AnnounceAutoprune, AskAutoprune, ApproveAutoprune, RestAutoprune, ConfirmAutoprune, ObserveAutoprune, ChangeProtection, ChangeImmutable, ChangeTagLabels, ChangeDefault,
	RunGC, RetryGC, RunCheck, AdoptStore, RunBackup, RunRestore, RunImport, FinishImport, RunLooseKeys, ExportLog, ChangeMaintenance,
	CreateWebhook, UpdateWebhook, DeleteWebhook, RedeliverWebhook, ChangeUser, RotateKeys, EndLogIns,
	ReportHolds, HoldReporterSilent, HoldReporterEnded, DeleteHoldReporter, RecountQuota,
	RestoreRepo, RestoreNamespace, PurgeRepo, PurgeNamespace,
}
