package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

// Labels of an image that decide about the tags that a push sets, if the namespace allows it. In
// each list, the first label that an image has counts. Clients of Quay know those with quay.
//
// A push reads the labels from the store before its transaction. The setting of the namespace has the
// version of the rules that protect tags, which the transaction compares.
var (
	expiryLabels    = []string{"io.purser.expires-after", "quay.expires-after"}
	immutableLabels = []string{"io.purser.immutable", "quay.immutable"}
)

// Bounds of reading labels. The reads of a push are bounded in number (labelImages), in size and
// in time, and those of all pushes in number (labelReads), so that pushes hold little memory. At
// most labelReadsWaiting reads wait; a quarter of them may be those of one account, of the robots of
// one namespace, or of one address without an account.
const (
	labelImages  = 100     // images of an index
	labelConfig  = 4 << 20 // bytes of a configuration
	labelBytes   = 64 << 10
	labelsWithin = 5 * time.Second
	labelReads   = 4

	labelReadsWaiting = 1024
	// minExpiry is the least value of a label for an expiration. A shorter one is more likely
	// mistyped (6m is six minutes) than meant, and would delete the tag before anybody looks.
	minExpiry = time.Hour
	maxExpiry = 100 * 365 * 24 * time.Hour
)

// partMissing says that labels can't be read because not all of the image is there yet.
const partMissing = "the repository lacks a part of it"

// Reader reads from the blob store, as blob.Store does.
type Reader interface {
	Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error)
}

// labelled is what the labels of a pushed manifest say about its tags.
type labelled struct {
	after     time.Duration // 0: nothing
	immutable bool
	ignored   []string // why labels don't count
	again     bool     // the next attempt of the push reads them again: a part of the image may have come
}

// tagLabels is what decides about the tags of a put: the labels, and the rules under which they
// were read. The zero value has no rules yet.
type tagLabels struct {
	rules *protection.Rules
	labelled
}

// seconds returns after how many seconds the tags expire; nil: never.
func (l tagLabels) seconds() *float64 {
	if l.after == 0 {
		return nil
	}
	seconds := l.after.Seconds()
	return &seconds
}

// text says why labels don't count; nil: they do, or there are none.
func (l tagLabels) text() *string {
	if len(l.ignored) == 0 {
		return nil
	}
	text := strings.Join(l.ignored, "; ")
	return &text
}

// labelsOf returns what the labels of a pushed manifest say about its tags, as far as the
// namespace allows it. It reads nothing if the namespace allows none, the push has no tags, or
// the manifest is imported. `known` has the result of an earlier attempt of the same push: what the
// labels say doesn't change once all of the image is there.
//
// Labels that can't be read decide nothing: the tag then gets no date, and isn't immutable.
func (c *Catalog) labelsOf(ctx context.Context, r repository, p NewManifest, rows manifestColumns, known **labelled) tagLabels {
	out := tagLabels{rules: c.rules()}
	allowed := out.rules.Labels(r.namespace)
	if allowed == (protection.TagLabels{}) || len(rows.tags) == 0 || p.Manifest == nil || p.Imported != nil {
		return out
	}
	if *known == nil || (*known).again {
		*known = c.readLabels(ctx, r, p)
	}
	out.ignored = (*known).ignored
	if allowed.Immutable {
		out.immutable = (*known).immutable
	}
	if allowed.Expiry && !out.immutable {
		out.after = (*known).after
	}
	if out.after > 0 && len(out.rules.Protected(r.namespace, r.id, rows.tags)) > 0 {
		out.ignored = append(out.ignored[:len(out.ignored):len(out.ignored)], "a protected tag gets no expiration")
	}
	return out
}

// readLabels reads the labels of a manifest: its own annotations, or else the labels of its
// images. A label counts if each image of an index has it; the longest time counts.
func (c *Catalog) readLabels(ctx context.Context, r repository, p NewManifest) *labelled {
	out, some := interpret(p.Manifest.Annotations)
	if some {
		return &out
	}
	images, problem := c.labelSources(ctx, r, p.Manifest)
	if problem == "" && len(images) > 0 {
		out, problem = c.readImages(ctx, images)
	}
	if problem != "" {
		out = labelled{ignored: []string{"labels of the image don't count: " + problem}, again: problem == partMissing}
	}
	return &out
}

// labelSource is the configuration of an image.
type labelSource struct {
	digest []byte
	key    *string // nil: the image has no configuration
	size   int64
	lost   bool
}

// labelSources finds the configurations of the manifest's images. OFFSET 0 in its SQL makes
// PostgreSQL look rows up by an index: see "Plans" in package db.
func (c *Catalog) labelSources(ctx context.Context, r repository, m *oci.Manifest) (list []labelSource, problem string) {
	if c.opt.Store == nil {
		return nil, "this process doesn't read the blob store"
	}
	var rows pgx.Rows
	var err error
	want := 0
	if m.Kind == oci.KindIndex {
		images := indexImages(m)
		if want = len(images); want > labelImages {
			return nil, fmt.Sprintf("the index has more than %d images", labelImages)
		}
		rows, err = c.db.Pool.Query(ctx, `
			SELECT m.configuration_blob_digest, b.storage_key, COALESCE(b.size, 0), COALESCE(b.lost_at IS NOT NULL, false)
			FROM unnest($3::bytea[]) AS want (digest)
			CROSS JOIN LATERAL (
				SELECT configuration_blob_digest FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest OFFSET 0) m
			LEFT JOIN LATERAL (SELECT storage_key, size, lost_at FROM blobs WHERE digest = m.configuration_blob_digest OFFSET 0) b ON true`,
			r.namespace, r.id, images)
	} else if m.Config != nil {
		want = 1
		rows, err = c.db.Pool.Query(ctx, "SELECT digest, storage_key, size, lost_at IS NOT NULL FROM blobs WHERE digest = $1", m.Config.Digest.Bytes())
	}
	if want == 0 {
		return nil, ""
	}
	if err == nil {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s labelSource, err error) {
			return s, row.Scan(&s.digest, &s.key, &s.size, &s.lost)
		})
	}
	switch {
	case err != nil:
		c.log.WarnContext(ctx, "labels of a pushed image could not be read", "error", err)
		return nil, "the database could not be asked for its configuration"
	case len(list) < want:
		return nil, partMissing
	}
	return list, ""
}

// indexImages returns the digests of the images that an index lists, each once, without the
// attestations that BuildKit pushes.
func indexImages(m *oci.Manifest) (digests [][]byte) {
	for _, d := range distinct(m.Manifests) {
		if p := d.Platform; d.IsManifest() && (p == nil || p.OS != "unknown" || p.Architecture != "unknown") {
			digests = append(digests, d.Digest.Bytes())
		}
	}
	return digests
}

// readImages reads configurations, and joins what their labels say.
func (c *Catalog) readImages(ctx context.Context, images []labelSource) (out labelled, problem string) {
	ctx, cancel := context.WithTimeout(ctx, labelsWithin)
	defer cancel()
	for i, image := range images {
		labels, problem := c.readConfiguration(ctx, image)
		if problem != "" {
			return labelled{}, problem
		}
		one, _ := interpret(labels)
		if i == 0 {
			out = one
			continue
		}
		if out.after == 0 || one.after == 0 {
			out.after = 0
		} else {
			out.after = max(out.after, one.after)
		}
		out.immutable = out.immutable && one.immutable
		if len(out.ignored) == 0 {
			out.ignored = one.ignored
		}
	}
	return out, ""
}

// readConfiguration reads the labels of an image.
func (c *Catalog) readConfiguration(ctx context.Context, image labelSource) (labels map[string]string, problem string) {
	switch {
	case image.key == nil:
		return nil, ""
	case image.lost:
		return nil, "the blob store has lost its configuration"
	case image.size > labelConfig:
		return nil, fmt.Sprintf("its configuration has more than %d bytes", labelConfig)
	}
	if err := c.labelReads.Enter(limit.WithCaller(ctx, labelReader(ctx))); err != nil {
		return nil, "its configuration could not be read in time"
	}
	defer c.labelReads.Leave()
	content, err := c.readWhole(ctx, image)
	if err != nil {
		c.log.WarnContext(ctx, "labels of a pushed image could not be read", "error", err)
		return nil, "its configuration could not be read"
	}
	return parseLabels(content)
}

// labelReader says whose share of the reads a push uses. Accounts get turns one after the other, so
// that one account's many pushes don't delay the others'.
func labelReader(ctx context.Context) limit.Caller {
	s := audit.SourceOf(ctx)
	if s.Actor != "" {
		return limit.Caller{Account: limit.Share(s.Actor), Known: true}
	}
	return limit.Caller{Address: limit.Client(s.Address)}
}

var errOtherContent = errors.New("the content has another digest")

func (c *Catalog) readWhole(ctx context.Context, image labelSource) ([]byte, error) {
	in, err := c.opt.Store.Open(ctx, *image.key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	content := make([]byte, image.size)
	if _, err := io.ReadFull(in, content); err != nil {
		return nil, err
	}
	d, err := oci.DigestFromBytes(image.digest)
	if err == nil && oci.Compute(d.Algorithm(), content) != d {
		err = errOtherContent
	}
	return content, err
}

// parseLabels returns the labels in an image's configuration. Content that isn't a JSON object has
// none. The labels are decoded only if their text is short, since a map of many small labels takes
// much more memory than its text.
func parseLabels(content []byte) (labels map[string]string, problem string) {
	if content = bytes.TrimLeft(content, " \t\r\n"); len(content) == 0 || content[0] != '{' {
		return nil, ""
	}
	var image struct {
		Config struct {
			Labels json.RawMessage `json:"Labels"`
		} `json:"config"`
	}
	switch {
	case json.Unmarshal(content, &image) != nil:
		return nil, "its configuration isn't that of an image"
	case len(image.Config.Labels) > labelBytes:
		return nil, fmt.Sprintf("they have more than %d bytes", labelBytes)
	case image.Config.Labels != nil && json.Unmarshal(image.Config.Labels, &labels) != nil:
		return nil, "they can't be read"
	}
	return labels, ""
}

// interpret returns what labels or annotations say. `some` says whether one of the known names is
// among them.
func interpret(labels map[string]string) (out labelled, some bool) {
	for _, name := range expiryLabels {
		value, ok := labels[name]
		if !ok {
			continue
		}
		some = true
		var err error
		if out.after, err = parseExpiry(value); err != nil {
			out.ignored = append(out.ignored, fmt.Sprintf("the label %s doesn't count: %v", name, err))
		}
		break
	}
	for _, name := range immutableLabels {
		value, ok := labels[name]
		if !ok {
			continue
		}
		some = true
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "true":
			out.immutable = true
		case "false", "":
		default:
			out.ignored = append(out.ignored, fmt.Sprintf("the label %s doesn't count: %.40q is neither true nor false", name, value))
		}
		break
	}
	return out, some
}

// parseExpiry parses the value of a label for an expiration: a number and one unit, as Quay takes
// it and as policies do. A time of less than minExpiry is an error.
func parseExpiry(value string) (time.Duration, error) {
	value = strings.TrimSpace(value)
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour, "y": 365 * 24 * time.Hour}
	digits := strings.TrimRight(value, "smhdwy")
	unit, known := units[value[len(digits):]]
	number, err := strconv.ParseUint(digits, 10, 63)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && known && number > uint64(maxExpiry/unit):
		return 0, fmt.Errorf("%.40q is longer than 100y", value)
	case err != nil, !known:
		return 0, fmt.Errorf("%.40q isn't a number and one of the units s, m, h, d, w and y, such as 2d", value)
	}
	if after := time.Duration(number) * unit; after >= minExpiry {
		return after, nil
	}
	return 0, fmt.Errorf("%.40q is less than an hour", value)
}
