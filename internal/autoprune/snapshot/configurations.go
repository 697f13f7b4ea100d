package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// Bounds of reading configurations.
const (
	maxConfiguration = 4 << 20 // bytes that are read of a configuration
	maxLabels        = 64 << 10
	maxPlatform      = 255 // bytes
	// configurationsAtOnce is how many configurations are read from the store at the same time,
	// configurationBatch how many between two writes to the database, and configurationList how
	// many are looked up at a time: the statement may read all manifests of the repository.
	configurationsAtOnce = 8
	configurationBatch   = 256
	configurationList    = 10_000
	// maxFailures is after how many failures of the store no further configuration is read.
	maxFailures = 3
	// configurationTimeout is how long reading one configuration may take.
	configurationTimeout = 5 * time.Second
	// longestRead is the longest time for which ConfigurationsUntil reads.
	longestRead = 10 * time.Second
)

// Store is where configurations of images are read from: see blob.Store.
type Store interface {
	Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error)
}

// configuration is the blob of an image's configuration, and what it says.
type configuration struct {
	digest           []byte
	manifest         int64
	key              string
	size             int64
	lost             bool
	platform, labels string
	problem          string // why platform and labels aren't known
}

// ReadConfigurations reads from the store the configurations of the repository's images that
// weren't read before, if a policy needs them, and stores what they say. It must not be called
// in a transaction. It stops after about the time `within`, and when the store has failed
// several times; then the policies are in doubt about the tags of the images that are left. It
// calls `alive` before each batch, and returns its errors and those of the database.
func (r *Reader) ReadConfigurations(ctx context.Context, pool db.Querier, t catalog.Repository, policies []judge.Applied, within time.Duration, alive func(context.Context) error) error {
	if r.Store == nil || !slices.ContainsFunc(policies, func(a judge.Applied) bool { return a.Policy.ReadsImages() || a.Policy.ReadsPlatforms() }) {
		return nil
	}
	until := time.Now().Add(within)
	for after := int64(0); time.Now().Before(until); {
		list, err := unreadConfigurations(ctx, pool, t, after)
		if err != nil || len(list) == 0 {
			return err
		}
		after = list[len(list)-1].manifest
		slices.SortFunc(list, func(a, b configuration) int { return slices.Compare(a.digest, b.digest) })
		list = slices.CompactFunc(list, func(a, b configuration) bool { return slices.Equal(a.digest, b.digest) })
		for batch := range slices.Chunk(list, configurationBatch) {
			if err := alive(ctx); err != nil {
				return err
			}
			if goOn, err := r.readBatch(ctx, pool, t, batch, until); err != nil || !goOn {
				return err
			}
		}
	}
	return nil
}

// ConfigurationsUntil is ReadConfigurations, by the pool of requests, for who has to end at the time
// `until`: it takes at most a quarter of the time until then.
func (r *Reader) ConfigurationsUntil(ctx context.Context, t catalog.Repository, policies []judge.Applied, until time.Time, alive func(context.Context) error) error {
	return r.ReadConfigurations(ctx, r.DB.Pool, t, policies, min(longestRead, time.Until(until)/4), alive)
}

// readBatch reads configurations, and stores what they say. goOn is false if no further
// configuration should be read now.
func (r *Reader) readBatch(ctx context.Context, pool db.Querier, t catalog.Repository, batch []configuration, until time.Time) (goOn bool, err error) {
	read, failures := r.readAll(ctx, batch, until)
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if len(failures) > 0 {
		r.Log.WarnContext(ctx, "configurations of images could not be read; policies with labels or platforms select no tags of these images",
			"repository", t.Path, "error", failures[0])
	}
	if err := storeConfigurations(ctx, pool, read); db.Code(err) == db.CodeLockNotAvailable {
		return false, nil // garbage collection is deleting one of the blobs; the next run reads them again
	} else if err != nil {
		return false, fmt.Errorf("storing what configurations of %s say: %w", t.Path, err)
	}
	return len(failures) < maxFailures && time.Now().Before(until), nil
}

// unreadConfigurations returns the configurations of up to configurationList manifests with
// ids above `after` that weren't read yet, or not successfully for an hour. Section "Plans" of
// package db says why the query has OFFSET 0.
func unreadConfigurations(ctx context.Context, q db.Querier, t catalog.Repository, after int64) ([]configuration, error) {
	rows, err := q.Query(ctx, `
		SELECT m.configuration_blob_digest, m.id, b.storage_key, b.size, b.lost_at IS NOT NULL
		FROM (
			SELECT id, configuration_blob_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id > $3 AND configuration_blob_digest IS NOT NULL
				AND EXISTS (SELECT FROM live_repositories WHERE id = $2)
				AND NOT EXISTS (
					SELECT FROM configurationattributes a WHERE a.digest = configuration_blob_digest
						AND (a.problem = '' OR a.read_at > now() - interval '1 hour') OFFSET 0)
			ORDER BY id LIMIT $4) m
		CROSS JOIN LATERAL (SELECT storage_key, size, lost_at FROM blobs WHERE digest = m.configuration_blob_digest OFFSET 0) b
		ORDER BY m.id`, t.NamespaceID, t.ID, after, configurationList)
	if err != nil {
		return nil, fmt.Errorf("looking for configurations of %s: %w", t.Path, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c configuration, err error) {
		return c, row.Scan(&c.digest, &c.manifest, &c.key, &c.size, &c.lost)
	})
	if err != nil {
		return nil, fmt.Errorf("looking for configurations of %s: %w", t.Path, err)
	}
	return list, nil
}

// readAll reads configurations until the time `until`. It returns those that it has tried to
// read, in the order of the list, and the failures of the store. After maxFailures it starts
// no further read.
func (r *Reader) readAll(ctx context.Context, list []configuration, until time.Time) (read []configuration, failures []error) {
	var lock sync.Mutex
	var group sync.WaitGroup
	next := 0
	done := make([]bool, len(list))
	for range min(configurationsAtOnce, len(list)) {
		group.Go(func() {
			for {
				lock.Lock()
				i := next
				next++
				stop := len(failures) >= maxFailures || ctx.Err() != nil || i >= len(list) || time.Now().After(until)
				lock.Unlock()
				if stop {
					return
				}
				err := list[i].read(ctx, r.Store)
				lock.Lock()
				done[i] = true
				if err != nil {
					list[i].problem = "the blob store could not be read"
					failures = append(failures, err)
				}
				lock.Unlock()
			}
		})
	}
	group.Wait()
	for i, c := range list {
		if done[i] {
			read = append(read, c)
		}
	}
	return read, failures
}

// read reads the configuration. The error is the store's.
func (c *configuration) read(ctx context.Context, store Store) error {
	switch {
	case c.lost:
		c.problem = "the blob store has lost it"
		return nil
	case c.size > maxConfiguration:
		c.problem = fmt.Sprintf("it has more than %d bytes", maxConfiguration)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, configurationTimeout)
	defer cancel()
	r, err := store.Open(ctx, c.key, 0, -1)
	if errors.Is(err, blob.ErrNotFound) {
		c.problem = "the blob store doesn't have it"
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	content := make([]byte, c.size)
	switch _, err := io.ReadFull(r, content); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		c.problem = "the blob store has fewer bytes of it"
	case err != nil:
		return err
	case !c.matches(content):
		c.problem = "the blob store has other content than its digest says"
	default:
		c.parse(content)
	}
	return nil
}

// matches returns whether the content has the configuration's digest. Otherwise the object is
// damaged, and what it says would be remembered for good.
func (c *configuration) matches(content []byte) bool {
	d, err := oci.DigestFromBytes(c.digest)
	if err != nil {
		return false
	}
	hash := d.Algorithm().New()
	hash.Write(content)
	return bytes.Equal(hash.Sum(nil), c.digest[1:])
}

// parse sets what the content says. Content that isn't a JSON object has no platform and no
// labels. Of an object that it can't read as an image's configuration, the two aren't known:
// another program may read it. The labels are decoded only if their text is short, since a map
// of many small labels takes ten times as much memory as its text.
func (c *configuration) parse(content []byte) {
	if content = bytes.TrimLeft(content, " \t\r\n"); len(content) == 0 || content[0] != '{' {
		return
	}
	var image struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant"`
		Config       struct {
			Labels json.RawMessage `json:"Labels"`
		} `json:"config"`
	}
	if json.Unmarshal(content, &image) != nil {
		c.problem = "it can't be read as the configuration of an image"
		return
	}
	platform, ok := platformOf(image.OS, image.Architecture, image.Variant)
	if !ok {
		c.problem = fmt.Sprintf("its platform has more than %d bytes", maxPlatform)
		return
	}
	var labels map[string]string
	switch raw := image.Config.Labels; {
	case len(raw) > maxLabels:
		c.problem = fmt.Sprintf("its labels have more than %d bytes", maxLabels)
		return
	case raw != nil && json.Unmarshal(raw, &labels) != nil:
		c.problem = "its labels can't be read"
		return
	}
	if len(labels) > 0 {
		text, err := json.Marshal(labels)
		if err != nil || len(text) > 8*maxLabels { // an escaped character has up to 6 bytes
			c.problem = "its labels can't be stored"
			return
		}
		c.labels = string(text)
	}
	c.platform = platform
}

// platformParts replaces the characters that a part of a platform can't have, so that no part
// looks like two.
var platformParts = strings.NewReplacer("/", "\uFFFD", "\x00", "\uFFFD")

// platformOf joins the parts of a platform; "" if os or architecture is missing. ok is false
// if it is too long.
func platformOf(os, architecture, variant string) (platform string, ok bool) {
	if os == "" || architecture == "" {
		return "", true
	}
	if len(os)+len(architecture)+len(variant)+2 > maxPlatform {
		return "", false
	}
	platform = platformParts.Replace(os) + "/" + platformParts.Replace(architecture)
	if variant != "" {
		platform += "/" + platformParts.Replace(variant)
	}
	return strings.ToLower(strings.ToValidUTF8(platform, "\uFFFD")), true
}

// storeConfigurations stores what configurations say, of those blobs that still exist.
func storeConfigurations(ctx context.Context, q db.Querier, list []configuration) error {
	if len(list) == 0 {
		return nil
	}
	digests, columns := make([][]byte, len(list)), [3][]string{}
	for i, c := range list {
		digests[i] = c.digest
		for j, text := range []string{c.platform, c.labels, c.problem} {
			columns[j] = append(columns[j], text)
		}
	}
	_, err := q.Exec(ctx, `
		INSERT INTO configurationattributes (digest, platform, labels, problem)
		SELECT c.digest, c.platform, c.labels, c.problem
		FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS c (digest, platform, labels, problem, place)
		CROSS JOIN LATERAL (SELECT FROM blobs WHERE digest = c.digest FOR KEY SHARE) b
		ORDER BY c.place
		ON CONFLICT (digest) DO UPDATE SET
			platform = EXCLUDED.platform, labels = EXCLUDED.labels, problem = EXCLUDED.problem, read_at = now()
		WHERE configurationattributes.problem <> ''`, digests, columns[0], columns[1], columns[2])
	return err
}
