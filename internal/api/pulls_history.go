package api

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
)

// PullHistory is how many pulls there were on each day.
type PullHistory struct {
	Since         *string    `json:"since" format:"date" doc:"The first day of which the history is kept. Of the pulls of this day some may be missing. Null: nothing was counted yet" example:"2026-11-01"`
	Days          []PullDay  `json:"days" nullable:"false" doc:"The days in UTC, oldest first, those without pulls too. The last is today. Days before since are left out"`
	Total         int64      `json:"total" doc:"Pulls of all these days"`
	RecordedSince *time.Time `json:"recorded_since" doc:"Every pull since then is counted, or will be within some minutes. Null: it isn't known yet"`
}

// PullDay is the number of pulls on one day.
type PullDay struct {
	Day   string `json:"day" format:"date" example:"2026-11-23"`
	Pulls int64  `json:"pulls"`
}

// RecentPulls is how often a repository was pulled lately.
type RecentPulls struct {
	Since         *string    `json:"since" format:"date" doc:"The first of the days. Null: nothing was counted yet" example:"2026-11-01"`
	Days          []int64    `json:"days" nullable:"false" doc:"Pulls on each of the last 30 days in UTC, oldest first. The last is today. Days before the history began are left out"`
	Count         int64      `json:"pull_count" doc:"Pulls of all these days"`
	Display       string     `json:"pull_count_display" doc:"pull_count for people" example:"1.7K"`
	RecordedSince *time.Time `json:"recorded_since" doc:"Of the days before, pulls may be missing. Null: it isn't known yet"`
}

// TopRepositories is which repositories were pulled most.
type TopRepositories struct {
	Since         *string            `json:"since" format:"date" doc:"The first day that was examined. Null: nothing was counted yet" example:"2026-11-01"`
	RecordedSince *time.Time         `json:"recorded_since" doc:"Of the days before, pulls may be missing. Null: it isn't known yet"`
	Repositories  []RankedRepository `json:"repositories" nullable:"false" doc:"Most pulls first"`
	All           bool               `json:"all" doc:"False: more than 100,000 repositories were pulled, and only the first 100,000 were examined"`
}

// RankedRepository is a repository in a list of those that were pulled most.
type RankedRepository struct {
	Repository string `json:"repository" example:"library/alpine"`
	Pulls      int64  `json:"pulls"`
}

// TopTags is which tags of a repository were pulled most.
type TopTags struct {
	Since         *string     `json:"since" format:"date" doc:"The first day that was examined. Null: nothing was counted yet" example:"2026-11-01"`
	RecordedSince *time.Time  `json:"recorded_since" doc:"Of the days before, pulls may be missing. Null: it isn't known yet"`
	Tags          []RankedTag `json:"tags" nullable:"false" doc:"Most pulls first"`
	All           bool        `json:"all" doc:"False: more than 100,000 tags were pulled, and only the first 100,000 were examined"`
}

// RankedTag is a tag in a list of those that were pulled most.
type RankedTag struct {
	Tag   string `json:"tag_name" example:"v1"`
	Pulls int64  `json:"pulls"`
}

// UnpulledRepositories is a page of repositories without pulls.
type UnpulledRepositories struct {
	Since         *string    `json:"since" format:"date" doc:"None of the repositories was pulled since: the first day that was examined or, if it is later, the day of recorded_since. Null: nothing was counted yet" example:"2026-11-01"`
	RecordedSince *time.Time `json:"recorded_since" doc:"Earlier pulls, also those of the day before that time, may be unknown. Null: it isn't known yet"`
	Repositories  []string   `json:"repositories" nullable:"false" doc:"Ordered by name" example:"[\"library/alpine\"]"`
	NextPage      string     `json:"next_page,omitempty" doc:"Where the next page begins; absent on the last"`
}

// HistoryDays is the part of an input that chooses the days of a history of pulls.
type HistoryDays struct {
	Days int `query:"days" minimum:"1" maximum:"3660" default:"30" doc:"The last days that are shown, today included"`
}

// TopLimit is the part of an input that chooses the length of a list of what was pulled most.
type TopLimit struct {
	Limit int `query:"limit" minimum:"1" default:"10" doc:"Most entries. More than 1000 counts as 1000"`
}

// Inputs of the operations on histories of pulls.
type (
	RepositoryHistory struct {
		InRepository
		HistoryDays
	}
	TagHistory struct {
		TagItem
		HistoryDays
	}
	ManifestHistory struct {
		ManifestItem
		HistoryDays
	}
	NamespaceHistory struct {
		InNamespace
		HistoryDays
	}
	TopRepositoriesQuery struct {
		HistoryDays
		TopLimit
		Namespace string `query:"namespace" doc:"Only repositories of this namespace" example:"library"`
	}
	TopTagsQuery struct {
		InRepository
		HistoryDays
		TopLimit
	}
	UnpulledQuery struct {
		HistoryDays
		Namespace string `query:"namespace" doc:"Only repositories of this namespace" example:"library"`
		Limit     int    `query:"limit" minimum:"1" default:"100" doc:"Repositories that a page examines. More than 100 counts as 100"`
		NextPage  string `query:"next_page" doc:"Where the page begins: next_page of the page before"`
	}
)

const historyDelay = "The history follows the counts, which are updated within some minutes. Days are in UTC. Where pulls aren't counted the answer is 404."

// The operations on histories of pulls. That of the account is of what is the client's: a public
// repository isn't, although everybody may read it. auth.LoggedIn keeps credentials out that are
// limited to some repositories: the sum of a namespace has others in it.
var (
	GetRepositoryHistory = pullReading[RepositoryHistory, PullHistory]("getRepositoryPullHistory", "/repository/{repository}/pull_statistics/history", auth.Pull,
		"Get how often a repository was pulled on each day", "Pulls of deleted tags and manifests are included. "+historyDelay)
	GetTagHistory = pullReading[TagHistory, PullHistory]("getTagPullHistory", "/repository/{repository}/tag/{tag}/pull_statistics/history", auth.Pull,
		"Get how often a tag was pulled on each day", historyDelay)
	GetManifestHistory = pullReading[ManifestHistory, PullHistory]("getManifestPullHistory", "/repository/{repository}/manifest/{digest}/pull_statistics/history", auth.Pull,
		"Get how often a manifest was pulled on each day", "By any tag or by digest. "+historyDelay)
	GetNamespaceHistory = pullReading[NamespaceHistory, PullHistory]("getNamespacePullHistory", "/organization/{orgname}/pull_statistics/history", auth.Pull,
		"Get how often a namespace's repositories were pulled on each day",
		"Pulls of deleted repositories are included. It needs a role in the whole namespace. "+historyDelay)
	GetHistory = pullReading[HistoryDays, PullHistory]("getPullHistory", "/pull_statistics/history", auth.Operate,
		"Get how often the registry's repositories were pulled on each day", "Pulls of deleted repositories are included. "+historyDelay)
	GetUserHistory = pullReading[HistoryDays, PullHistory]("getUserPullHistory", "/user/pull_statistics/history", auth.LoggedIn,
		"Get how often the repositories of the request's account were pulled on each day",
		"These are the namespaces and the repositories in which the account has a role; for an account that may read all repositories, those of the registry. "+
			"Pulls of deleted repositories of these namespaces are included. It isn't for limited robots and tokens. "+historyDelay)

	ListTopRepositories = pullReading[TopRepositoriesQuery, TopRepositories]("listTopRepositories", "/pull_statistics/top", auth.List,
		"List the repositories that were pulled most",
		"Lists repositories from which one may pull. If more than 1,000,000 pairs of a repository and a day had to be read, the answer is 409. "+historyDelay, http.StatusConflict)
	ListTopTags = pullReading[TopTagsQuery, TopTags]("listTopTags", "/repository/{repository}/pull_statistics/top", auth.Pull,
		"List the tags of a repository that were pulled most",
		"Deleted tags are left out. If more than 1,000,000 pairs of a tag and a day had to be read, the answer is 409. "+historyDelay, http.StatusConflict)
	ListUnpulled = pullReading[UnpulledQuery, UnpulledRepositories]("listUnpulledRepositories", "/pull_statistics/unpulled", auth.List,
		"List the repositories that weren't pulled",
		"Lists repositories from which one may pull and nobody did in the last days, as far as pulls were counted: see since. A page may be short, even empty, and have a next one. "+
			"A HEAD request is no pull, so such a repository may be in use. "+historyDelay)
)
