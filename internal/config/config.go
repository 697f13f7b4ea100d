// Package config has all settings of Purser in one struct, and loads, validates and shows
// them.
//
// A setting has a dotted key, such as "http.addr". Its value comes from one of four
// sources. In increasing priority these are the default, the YAML file, the environment
// variable (PURSER_HTTP_ADDR), and calls of [Config.Set], which apply command-line flags. A
// value can also be read from a file of its own, whose path is in a variable with _FILE
// appended to its name or, for a secret, in a value with the prefix "file:".
//
// The table in settings.go is the only list of keys. The file, the environment, the output
// of [Config.Show] and the documentation all follow it. Every error names the key and the
// source of the wrong value, and never contains the value of a secret.
//
// Only the commands import this package. All other packages define options of their own.
//
// # Decisions
//
// The package validates values alone, and reads no file but those with values. Package
// cmd/purser/internal/backend checks the rest (CheckSettings).
//
// A URL whose password could be read as its host is refused (dsn.go). postgres://u:12#34@h/db has
// the host u and the port 12 for every parser, and the log would tell them. Escaped characters cost
// the operator a minute.
//
// A DN is never split at its commas (groupsField). Groups of a directory are separated by
// semicolons, or are a list of YAML; where a text could be read in two ways, the start ends with an
// error. To guess could make everybody an administrator, or nobody.
package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/purser-registry/purser/internal/gc/events"
)

// Config is the effective configuration. Only [Load] can make one; the zero value isn't
// usable.
type Config struct {
	DataDir          string // absolute
	HTTP             HTTP
	Log              Log
	Database         Database
	Storage          Storage
	Uploads          Uploads
	Manifests        Manifests
	GC               GC
	LooseForeignKeys LooseForeignKeys
	Audit            Audit
	PullStatistics   PullStatistics
	Redis            Redis
	Autoprune        Autoprune
	Trash            Trash
	Clock            Clock
	Webhooks         Webhooks
	Auth             Auth
	Limits           Limits
	Cache            Cache

	sources map[string]string // where each key's value comes from; a missing key has its default
	env     map[string]string // variables without the prefix PURSER_ from which defaults are derived
}

// Log configures logging.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // auto, text or json
	Access bool
}

// Database says where the metadata is.
type Database struct {
	Main       DSN // "": the built-in PostgreSQL
	Stats      DSN // default: Main
	Partitions int
	MaxConns   int
	Migrate    bool
}

// Storage configures where blobs are stored: in a bucket of S3 if one is named,
// otherwise in a local directory.
type Storage struct {
	Filesystem    Filesystem
	S3            S3
	DeleteTimeout time.Duration
	// Reserve is how many bytes pushes leave free on the disks of the registry. If LimitReserve is set,
	// it is the default, and at most a tenth of a disk.
	Reserve      int64
	LimitReserve bool
}

// Filesystem is the local directory of blobs.
type Filesystem struct {
	Path string // absolute; "" if S3 is used
}

// Uploads configures how long and how many uploads may stay unfinished.
type Uploads struct {
	MaxAge time.Duration
	// MaxOpen, MaxClientOpen and MaxAccountOpen limit the open uploads of all, of one client
	// and of one account. 0: no limit.
	MaxOpen, MaxClientOpen, MaxAccountOpen int
}

// Limits say how many things accounts may make. What is more already stays.
type Limits struct {
	Robots          int // of a namespace
	Teams           int // of a namespace
	TeamMembers     int // of a team
	Tokens          int // personal tokens of an account, secrets of a robot
	RefreshTokens   int // of an account; a further one ends the oldest
	FederatedTokens int // of a robot; a further one ends the oldest
	FederationRules int // of a robot
	Permissions     int // of a repository or a namespace
	Sessions        int // log-ins of browsers of an account; a further one ends the oldest
	Policies        int // of a repository, a namespace or the registry
	ProtectionRules int // of a repository, a namespace or the registry
	Webhooks        int // of a namespace
	Reporters       int // of holds, of an account in a namespace
}

// GC configures garbage collection.
type GC struct {
	ReviewManifests bool
	ReviewBlobs     bool
	ReviewAfter     time.Duration
	// ReviewAfterEvents overrides the review delay (ReviewAfter) after some events.
	ReviewAfterEvents  map[string]time.Duration
	Workers            int // for blobs, and as many for manifests
	TransactionTimeout time.Duration
	SetAsideAfter      int
	KeepDoomed         time.Duration // how long objects of deleted blobs stay in the store
}

// LooseForeignKeys configures the worker that, after a repository was deleted, deletes or
// updates the rows that refer to it, in batches.
type LooseForeignKeys struct {
	Enabled    bool
	Interval   time.Duration // between runs
	MaxDeletes int           // rows per run
	MaxUpdates int
	MaxRuntime time.Duration
}

// Delay returns the review delay after `event`: how long garbage collection waits before it
// reviews a blob or manifest that the event may have made garbage.
func (g GC) Delay(event string) time.Duration {
	if d, ok := g.ReviewAfterEvents[event]; ok {
		return d
	}
	return events.DelayUnset(event, g.ReviewAfter)
}

// Delays returns the review delay of each event after which garbage collection reviews
// something.
func (g GC) Delays() map[string]time.Duration {
	all := map[string]time.Duration{}
	for _, event := range events.WithDelay() {
		all[event] = g.Delay(event)
	}
	return all
}

// Manifests configures which manifests are accepted.
type Manifests struct {
	SparseIndexes bool // accept indexes some of whose manifests are missing
}

// Cache configures the caches in memory.
type Cache struct {
	Enabled       bool
	ManifestBytes int64
	Entries       int
}

// Load returns the configuration from the YAML file at `path` (no file if path is empty)
// and from `environ`, whose entries have the form "NAME=value", as in [os.Environ].
//
// The error joins all problems. Load returns a configuration even if there are problems,
// with defaults instead of invalid values. Thus the caller can also collect the errors of
// [Config.Set] and [Config.Validate], and show all at once. Load doesn't call Validate,
// since command-line flags may still change settings.
func Load(path string, environ []string) (*Config, error) {
	c := &Config{
		GC:      GC{ReviewAfterEvents: map[string]time.Duration{}},
		sources: map[string]string{},
		env:     map[string]string{},
	}
	for _, s := range settings {
		if s.unset {
			continue
		}
		if err := s.field(c).set(s.def); err != nil {
			panic(fmt.Sprintf("config: the default of %s: %v", s.key, err))
		}
	}
	var problems []error
	if path != "" {
		problems = append(problems, c.loadFile(path)...)
	}
	problems = append(problems, c.loadEnviron(environ)...)
	c.derive()
	return c, errors.Join(problems...)
}

// Set sets the setting `key` to `value`, which has the format of an environment variable's
// value. An empty value restores the default of a setting whose default depends on other
// settings. `source` says where the value comes from, such as "flag --addr"; errors and
// Show repeat it.
func (c *Config) Set(key, value, source string) error {
	s := settingOf(key)
	if s == nil {
		return fmt.Errorf("%s: %s: there is no such setting%s", source, key, didYouMean(key, allKeys()))
	}
	if err := c.set(s, value, source); err != nil {
		return err
	}
	c.derive()
	return nil
}

func (c *Config) set(s *setting, value, source string) error {
	if path, isFile := filePath(value); isFile && s.takesFile(c) {
		return c.setFromFile(s, path, source)
	}
	if err := s.field(c).set(value); err != nil {
		return fmt.Errorf("%s: %s: %w", source, s.key, err)
	}
	c.sources[s.key] = source
	if value == "" && s.derived != "" {
		delete(c.sources, s.key) // an empty value restores the derived default
	}
	return nil
}

// setList is set for a setting with many values.
func (c *Config) setList(s *setting, entries []string, source string) error {
	if err := s.field(c).(manyField).setList(entries); err != nil {
		return fmt.Errorf("%s: %s: %w", source, s.key, err)
	}
	c.sources[s.key] = source
	return nil
}

// Source returns where the value of `key` comes from: "default", "FILE:LINE", "env
// VARIABLE", or the source that was passed to Set.
func (c *Config) Source(key string) string {
	if source, ok := c.sources[key]; ok {
		return source
	}
	return "default"
}

// isSet says whether `key` was given a value by the file, the environment or Set, rather
// than by its default.
func (c *Config) isSet(key string) bool {
	_, ok := c.sources[key]
	return ok
}

// derive recomputes all defaults that depend on other settings or on the environment. It
// runs after each change of a setting, so the order of changes doesn't matter.
func (c *Config) derive() {
	if !c.isSet("data_dir") {
		c.DataDir = defaultDataDir(c.env)
	}
	c.DataDir = absolute(c.DataDir)
	c.deriveTimes()
	c.deriveLimits()
	c.deriveAuth()
	c.HTTP.deriveProfiles(c.isSet("http.profile_addr"))
	if !c.isSet("database.stats") {
		c.Database.Stats = c.Database.Main
	}
	if !c.isSet("storage.s3.region") {
		c.Storage.S3.Region = defaultRegion(c.env)
	}
	if !c.isSet("pull_statistics.enabled") {
		c.PullStatistics.Enabled = c.Audit.Pulls
	}
	if c.Storage.LimitReserve = !c.isSet("storage.reserve"); c.Storage.LimitReserve {
		c.Storage.Reserve = mostReserve
	}
	fs := &c.Storage.Filesystem
	switch {
	case c.isSet("storage.filesystem.path"):
		fs.Path = absolute(fs.Path)
	case c.Storage.S3.Bucket != "" || c.DataDir == "":
		fs.Path = ""
	default:
		fs.Path = filepath.Join(c.DataDir, "blobs")
	}
}

// mostReserve is the default of storage.reserve, in bytes. The built-in PostgreSQL's log takes up to
// two thirds of it (max_wal_size).
const mostReserve = 3 << 30

// absolute returns `path` as an absolute path. It returns two kinds of path unchanged,
// which Validate reports as errors: an empty path, and a path that begins with a tilde,
// since only a shell expands the tilde.
func absolute(path string) string {
	if path == "" || path[0] == '~' {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
