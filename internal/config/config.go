// Package config holds every setting of Purser in one struct: where it comes
// from, what it may be, and what is in force.
//
// A setting has one dotted key, "http.addr". Its value is, from weakest to
// strongest: the default, the YAML file, the environment (PURSER_HTTP_ADDR),
// and what [Config.Set] was called with, which is how flags arrive. A variable with
// _FILE behind its name, and a secret with file: in front, name a file that has the
// value. The table
// in settings.go is the only list of keys: the file, the environment, the
// output of [Config.Show] and the documentation all follow it. Every problem
// names its place and key and never holds the value of a secret.
//
// Only package main imports this package. All others have options of their own.
package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Config is what is in force. [Load] makes it; the zero value isn't usable.
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
	Webhooks         Webhooks
	Cache            Cache

	sources map[string]string // key → where its value comes from; absent: default
	env     map[string]string // the environment outside PURSER_ that defaults follow
}

// Log is what is logged and how.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // auto, text or json
	Access bool
}

// Database is where the metadata is.
type Database struct {
	Main       DSN // "" for the built-in PostgreSQL
	Stats      DSN // Main when nothing else is set
	Partitions int
	MaxConns   int
	Migrate    bool
}

// Storage is where the blobs are: in S3 when [Storage.UsesS3], else in a
// directory.
type Storage struct {
	Filesystem    Filesystem
	S3            S3
	DeleteTimeout time.Duration
}

// Filesystem is a local directory of blobs.
type Filesystem struct {
	Path string // absolute; "" when S3 is used
}

// Uploads is about unfinished blobs.
type Uploads struct {
	MaxAge        time.Duration
	MaxOpen       int // 0: no limit
	MaxClientOpen int
}

// GC is about the review of what may be garbage.
type GC struct {
	ReviewManifests bool
	ReviewBlobs     bool
	ReviewAfter     time.Duration
	// ReviewAfterEvents has the events that have another delay.
	ReviewAfterEvents  map[string]time.Duration
	Workers            int // of each kind
	Batch              int
	TransactionTimeout time.Duration
	SetAsideAfter      int
	KeepDoomed         time.Duration // objects of deleted blobs
}

// LooseForeignKeys is about what deleted repositories leave behind.
type LooseForeignKeys struct {
	Enabled    bool
	Interval   time.Duration // between runs
	MaxDeletes int           // rows per run
	MaxUpdates int
	MaxRuntime time.Duration
}

// Delay is the delay after an event.
func (g GC) Delay(event string) time.Duration {
	if d, ok := g.ReviewAfterEvents[event]; ok {
		return d
	}
	return g.ReviewAfter
}

// Delays has the delay of every event.
func (g GC) Delays() map[string]time.Duration {
	all := make(map[string]time.Duration, len(gcEvents))
	for _, event := range gcEvents {
		all[event] = g.Delay(event)
	}
	return all
}

// Manifests is about which manifests are accepted.
type Manifests struct {
	SparseIndexes bool // indexes whose manifests aren't all there
}

// Cache is about what is kept in memory.
type Cache struct {
	Enabled       bool
	ManifestBytes int64
	Entries       int
}

// Load returns the configuration of the YAML file at path, none when path is
// empty, and of environ, which has the form of [os.Environ].
//
// The error joins every problem that was found. The configuration is returned
// even then, with defaults in the place of what is wrong, so that a caller can
// join the problems of [Config.Set] and [Config.Validate] and show all at once.
// Load itself doesn't call Validate, since flags can still change the outcome.
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

// Set gives key a value in the form that it has in the environment; an empty one
// restores a default that follows from something else. source is
// where the value comes from, "flag --addr"; it stands in the output of Show
// and in front of problems.
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
		delete(c.sources, s.key) // empty means what it is derived from
	}
	return nil
}

// Source returns where the value of key comes from: "default", "FILE:LINE",
// "env VARIABLE" or what Set was told.
func (c *Config) Source(key string) string {
	if source, ok := c.sources[key]; ok {
		return source
	}
	return "default"
}

// isSet tells whether key was given a value.
func (c *Config) isSet(key string) bool {
	_, ok := c.sources[key]
	return ok
}

// derive recomputes the defaults that follow from other settings or from the
// surroundings. It runs after each change, so its outcome never depends on the
// order of changes.
func (c *Config) derive() {
	if !c.isSet("data_dir") {
		c.DataDir = defaultDataDir(c.env)
	}
	c.DataDir = absolute(c.DataDir)
	c.deriveTimes()
	c.deriveLimits()
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
	fs := &c.Storage.Filesystem
	switch {
	case c.isSet("storage.filesystem.path"):
		fs.Path = absolute(fs.Path)
	case c.Storage.UsesS3() || c.DataDir == "":
		fs.Path = ""
	default:
		fs.Path = filepath.Join(c.DataDir, "blobs")
	}
}

// absolute makes path absolute, except where Validate is to refuse it: an empty
// one, and one with a tilde, which only a shell expands.
func absolute(path string) string {
	if path == "" || path[0] == '~' {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
