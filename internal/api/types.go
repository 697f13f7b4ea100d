// Package api has the operations of the management API as values ([Operation]), the types of their
// inputs and answers, and the client by which the command line calls them. The server binds an
// operation to a function, a command calls it over HTTP, and a page of the UI runs it in the
// process. So its path, its access and its words are in one place.
//
// The OpenAPI document has a schema for each of the types. The schema has the name of the Go type,
// and its descriptions come from the struct tags of the type's fields.
package api

import "time"

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
