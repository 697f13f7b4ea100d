package api

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

// RecordedSince says since when pulls have been counted.
type RecordedSince struct {
	RecordedSince *time.Time `json:"recorded_since" doc:"Every pull since then is counted, or will be within some minutes. Null: it isn't known yet"`
	Realtime      *bool      `json:"realtime,omitempty" doc:"If the request had realtime=true: whether the numbers include pulls that aren't counted yet. False: there is no Redis, which alone knows such pulls at once, or it doesn't answer"`
}

// TagPulls has the pull statistics of one tag, as an element of a list in an answer.
type TagPulls struct {
	Name   string     `json:"tag_name"`
	Count  int64      `json:"tag_pull_count"`
	Last   *time.Time `json:"last_tag_pull_date" doc:"Null: not pulled since recorded_since"`
	Check  *time.Time `json:"last_check_date" doc:"The time of the last HEAD request, which is no pull, exact to some minutes; null: there was none"`
	Digest string     `json:"current_manifest_digest" doc:"The manifest that the last pull by this tag returned"`
}

// ManifestPulls has a manifest's pull statistics.
type ManifestPulls struct {
	Digest  string     `json:"manifest_digest"`
	Count   int64      `json:"manifest_total_pull_count" doc:"Pulls by any tag or by digest"`
	Last    *time.Time `json:"manifest_last_pull_date" doc:"Null: not pulled since recorded_since"`
	Check   *time.Time `json:"last_check_date" doc:"The time of the last HEAD request by digest, which is no pull, exact to some minutes; null: there was none"`
	LastTag *string    `json:"last_tag_pulled" doc:"The tag of the last pull by tag; null: there was none"`
}

// TagPullStatistics is the answer about the pulls of a tag.
type TagPullStatistics struct {
	Name         string     `json:"tag_name"`
	Count        int64      `json:"tag_pull_count"`
	Last         *time.Time `json:"last_tag_pull_date" doc:"Null: not pulled since recorded_since"`
	Check        *time.Time `json:"last_check_date" doc:"The time of the last HEAD request, which is no pull, exact to some minutes; null: there was none"`
	Digest       oci.Digest `json:"manifest_digest" doc:"The manifest that the tag points to"`
	TotalCount   int64      `json:"manifest_total_pull_count" doc:"Pulls of the manifest by any tag or by digest"`
	ManifestLast *time.Time `json:"manifest_last_pull_date" doc:"Null: not pulled since recorded_since"`
	RecordedSince
}

// ManifestPullStatistics is the answer about the pulls of a manifest.
type ManifestPullStatistics struct {
	ManifestPulls
	RecordedSince
}

// RepositoryPullStatistics is a page of the pulls of a repository's tags and manifests.
type RepositoryPullStatistics struct {
	Repository string          `json:"repository"`
	Tags       []TagPulls      `json:"tags" nullable:"false" doc:"Ordered by name"`
	Manifests  []ManifestPulls `json:"manifests" nullable:"false" doc:"Ordered by digest; they come after all tags"`
	RecordedSince
	NextPage string `json:"next_page,omitempty" doc:"Where the next page begins; absent on the last"`
}

// PullState is the state of pull counting.
type PullState struct {
	RecordedSince time.Time   `json:"recorded_since" doc:"Every pull since then is counted or will be"`
	UsedSince     time.Time   `json:"used_since" doc:"Since then the last use of tags and manifests is known, by which last_pulled policies decide. It is earlier than recorded_since if some pulls could be recorded but not counted"`
	CheckedSince  time.Time   `json:"checks_since" doc:"Since then HEAD requests are recorded, as uses that are no pulls"`
	CountedBy     string      `json:"counted_by" enum:"audit,redis,none" doc:"Who counts the pulls that this process answers: the audit log's reader, or Redis"`
	Behind        float64     `json:"behind_seconds" doc:"Age of the oldest pull in the log that isn't counted yet; 0: there is none"`
	Counted       int64       `json:"counted" doc:"Number of pulls that were ever counted from the log"`
	Last          *time.Time  `json:"last_processed_timestamp" doc:"The newest pull that was read in the log; null: none was read"`
	LastID        int64       `json:"last_processed_log_id"`
	LastXID       uint64      `json:"last_processed_xid" doc:"Transaction id of the last entry read. The log is read in the order of transaction id and entry id"`
	Checked       time.Time   `json:"checked_at" doc:"When the log was last read"`
	Problem       string      `json:"problem,omitempty" doc:"Why nothing can be counted from the log, and what to do"`
	Unseen        string      `json:"unseen,omitempty" doc:"Why this process can't tell what was used, so that nothing is deleted by last use, and what to do"`
	Redis         *RedisPulls `json:"redis,omitempty" doc:"The state of counting in Redis; absent: pulls aren't counted in Redis"`
}

// RedisPulls is the state of pull counting in Redis.
type RedisPulls struct {
	Address   string     `json:"address"`
	Reachable bool       `json:"reachable"`
	Memory    int64      `json:"memory_bytes" doc:"Memory that Redis uses for everything"`
	MaxMemory int64      `json:"max_memory_bytes" doc:"Redis's maxmemory; 0: there is no limit"`
	Status    string     `json:"processing_status" enum:"IDLE,PROCESSING,ERROR"`
	Error     string     `json:"error_message,omitempty" doc:"Why the last flush failed"`
	Processed *time.Time `json:"last_processed_timestamp" doc:"When the last complete flush began; null: there was none"`
	Behind    *float64   `json:"behind_seconds" doc:"Time since last_processed_timestamp"`
	Keys      int64      `json:"keys_processed_count" doc:"Number of keys that were ever flushed"`
	Problems  []string   `json:"problems" nullable:"false" doc:"Reasons why pulls can't be counted or may be lost, and what to do"`
}

// ResetPulls is the answer to a request to go on counting after a restore.
type ResetPulls struct {
	Unread int64 `json:"unread" doc:"Pulls in the log that are to be counted now"`
}

// Realtime is the part of an input by which a client asks for statistics that include the pulls
// which Redis has counted but which aren't in the database yet.
type Realtime struct {
	Realtime bool `query:"realtime" doc:"Add the pulls in Redis that aren't counted yet. If there is no Redis, or it doesn't answer, the numbers are those of the database"`
}

// Inputs of the operations on statistics of pulls.
type (
	TagPullsQuery struct {
		TagItem
		Realtime
	}
	ManifestPullsQuery struct {
		ManifestItem
		Realtime
	}
	RepositoryPullsQuery struct {
		InRepository
		Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most tags and manifests of a page. More than 1000 counts as 1000"`
		NextPage string `query:"next_page" doc:"Where the page begins: next_page of the page before"`
		Realtime
	}
	PullsReset struct {
		Redis       bool `query:"redis" doc:"Give up the pulls in a Redis that no longer exists"`
		NothingLost bool `query:"nothing_lost" doc:"The database has all that it had when the registry last served, because it was moved and not set back: keep the times since when pulls and uses are known"`
	}
)

// pullReading describes an operation that reads statistics of pulls, at each of which the answer is
// 404 if pulls aren't counted.
func pullReading[I, O any](id, path string, access auth.Access, summary, description string, errors ...int) Operation[I, O] {
	return Operation[I, O]{
		ID: id, Method: http.MethodGet, Path: path, Tag: "pullstatistics", Access: access, Summary: summary, Description: description,
		Errors: append([]int{http.StatusNotFound}, errors...),
	}
}

const pullsDelay = "Counts are updated within some minutes (pull_statistics.interval). Where pulls aren't counted the answer is 404."

// The operations on statistics of pulls, and on the state of counting.
var (
	GetRepositoryPulls = pullReading[RepositoryPullsQuery, RepositoryPullStatistics]("getRepositoryPullStatistics", "/repository/{repository}/pull_statistics", auth.Pull,
		"List how often and when tags and manifests were pulled",
		"Tags and manifests that were never pulled, or are gone, are left out, so a page may be shorter than limit. "+pullsDelay)
	GetTagPulls = pullReading[TagPullsQuery, TagPullStatistics]("getTagPullStatistics", "/repository/{repository}/tag/{tag}/pull_statistics", auth.Pull,
		"Get how often and when a tag was pulled", pullsDelay)
	GetManifestPulls = pullReading[ManifestPullsQuery, ManifestPullStatistics]("getManifestPullStatistics", "/repository/{repository}/manifest/{digest}/pull_statistics", auth.Pull,
		"Get how often and when a manifest was pulled", pullsDelay)

	GetPullState = pullReading[struct{}, PullState]("getPullStatisticsState", "/pull_statistics", auth.Operate, "Get how far pulls are counted", "")
	FlushPulls   = Operation[struct{}, PullState]{
		ID: "flushPullStatistics", Method: http.MethodPost, Path: "/pull_statistics/flush", Tag: "pullstatistics", Access: auth.Operate,
		Summary: "Count now the pulls that aren't counted yet", Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable},
		Description: "The answer comes when all pulls are counted that can be. Pulls of the last second, and those behind a transaction " +
			"that is open in the database, may be left. 409: see problem.",
	}
	ResetPullCounts = Operation[PullsReset, ResetPulls]{
		ID: "resetPullStatistics", Method: http.MethodPost, Path: "/pull_statistics/reset", Tag: "pullstatistics", Access: auth.Operate,
		Summary: "Go on counting after a restore", Errors: []int{http.StatusNotFound, http.StatusConflict},
		Description: "After the database was restored from a dump or moved to another server it can't be told by transaction ids " +
			"which pulls were counted. This renumbers the log: pulls that were counted aren't counted again, the others will be. " +
			"Counts stay. Pulls and uses of the time that the database has lost are unknown, so they count as known from now on only, " +
			"and no reporter of holds is live until it reports again, unless nothing_lost=true. With redis=true: gives up the pulls in a Redis that no longer exists, and leaves the log as it is.",
	}
)
