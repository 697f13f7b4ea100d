package api

import "time"

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
	Since   *string `json:"since" format:"date" doc:"The first of the days. Null: nothing was counted yet" example:"2026-11-01"`
	Days    []int64 `json:"days" nullable:"false" doc:"Pulls on each of the last 30 days in UTC, oldest first. The last is today. Days before the history began are left out"`
	Count   int64   `json:"pull_count" doc:"Pulls of all these days"`
	Display string  `json:"pull_count_display" doc:"pull_count for people" example:"1.7K"`
}

// TopRepositories is which repositories were pulled most.
type TopRepositories struct {
	Since        *string            `json:"since" format:"date" doc:"The first day that was examined. Null: nothing was counted yet" example:"2026-11-01"`
	Repositories []RankedRepository `json:"repositories" nullable:"false" doc:"Most pulls first"`
	All          bool               `json:"all" doc:"False: more than 100,000 repositories were pulled, and only the first 100,000 were examined"`
}

// RankedRepository is a repository in a list of those that were pulled most.
type RankedRepository struct {
	Repository string `json:"repository" example:"library/alpine"`
	Pulls      int64  `json:"pulls"`
}

// TopTags is which tags of a repository were pulled most.
type TopTags struct {
	Since *string     `json:"since" format:"date" doc:"The first day that was examined. Null: nothing was counted yet" example:"2026-11-01"`
	Tags  []RankedTag `json:"tags" nullable:"false" doc:"Most pulls first"`
	All   bool        `json:"all" doc:"False: more than 100,000 tags were pulled, and only the first 100,000 were examined"`
}

// RankedTag is a tag in a list of those that were pulled most.
type RankedTag struct {
	Tag   string `json:"tag_name" example:"v1"`
	Pulls int64  `json:"pulls"`
}

// UnpulledRepositories is a page of repositories without pulls.
type UnpulledRepositories struct {
	Since        *string  `json:"since" format:"date" doc:"The first day that was examined: none of the repositories was pulled since" example:"2026-11-01"`
	Repositories []string `json:"repositories" nullable:"false" doc:"Ordered by name" example:"[\"library/alpine\"]"`
	NextPage     string   `json:"next_page,omitempty" doc:"Where the next page begins; absent on the last"`
}
