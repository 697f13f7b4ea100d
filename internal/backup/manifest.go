package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
)

// Names of files in a target.
const (
	markFile     = "purser-backup.json" // says that this is a target, and of which registry
	backupsDir   = "backups/"
	objectsDir   = "objects/"
	manifestName = "manifest.json"
)

const (
	// format is the version of the layout and of the manifest.
	format = 1
	// formatLost is that of a backup with a list of lost blobs. A version of Purser that doesn't know
	// this list would delete their copies, and so refuses the backup, and deletes no objects.
	formatLost = 2
)

// idLayout is the format of a backup's id: the time at which it began.
const idLayout = "20060102T150405.000Z"

// Which says what a backup has of the blobs.
type Which string

const (
	// Reference: a list of the objects that the database needs.
	Reference Which = "reference"
	// Copy: the objects too.
	Copy Which = "copy"
)

// Manifest describes a backup. It is written last: a backup without a manifest is incomplete.
type Manifest struct {
	Format   int         `json:"format"`
	ID       string      `json:"id"`
	Purser   string      `json:"purser"` // the version that wrote the backup
	Began    time.Time   `json:"began"`
	Snapshot time.Time   `json:"snapshot"` // when the state was current that the backup has
	Finished time.Time   `json:"finished"`
	Store    string      `json:"store"` // the identity of the blob store
	Place    string      `json:"place"` // of the blob store
	Schema   db.Versions `json:"schema"`
	Main     Part        `json:"main"`
	Stats    Part        `json:"stats"`
	Blobs    Objects     `json:"blobs"`
	// Lost are the objects of the blobs that were marked as lost, if there were any. A backup doesn't
	// copy them, but earlier backups may have done so while the store had them.
	Lost Objects `json:"lost,omitzero"`
}

// Part is a part of the database: the metadata or the statistics of pulls.
type Part struct {
	Server     string      `json:"server"` // version of PostgreSQL
	Tables     []Table     `json:"tables"` // a table comes after those that it references
	Sequences  []Sequence  `json:"sequences"`
	Partitions []Partition `json:"partitions"`
}

// Table has the content of a table, without its generated columns.
type Table struct {
	Name    string   `json:"name"`
	Columns []string `json:"columns"`
	Rows    int64    `json:"rows"`
	Files   []File   `json:"files"`
}

// Sequence is the state of a sequence.
type Sequence struct {
	Name   string `json:"name"`
	Value  int64  `json:"value"`
	Called bool   `json:"called"`
}

// Partition is a partition that isn't one of a fixed number of hash partitions.
type Partition struct {
	Parent string `json:"parent"`
	Schema string `json:"schema"` // "": the schema of the parent
	Name   string `json:"name"`
	Bound  string `json:"bound"` // as SQL
}

// File is a part of a table or list. It is compressed with gzip.
type File struct {
	Name   string `json:"name"` // below the backup's directory
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Objects are the objects of all blobs of the snapshot, except those that were marked as lost.
type Objects struct {
	Which       Which `json:"which"`
	Count       int64 `json:"count"`
	Bytes       int64 `json:"bytes"`
	Copied      int64 `json:"copied"` // objects that earlier backups in the target didn't have
	CopiedBytes int64 `json:"copied_bytes"`
	// Missing counts the objects that couldn't be copied, because the store didn't have them
	// or had other bytes. FirstMissing has the keys of up to 100 of them.
	Missing      int64    `json:"missing"`
	FirstMissing []string `json:"first_missing,omitempty"`
	Files        []File   `json:"files"` // the list: key, size and digest of each object
}

// Bytes returns the size of the database's part of the backup, compressed.
func (m *Manifest) Bytes() (sum int64) {
	for f := range m.files() {
		sum += f.Size
	}
	return sum
}

// Rows returns the number of rows in the backup.
func (m *Manifest) Rows() (sum int64) {
	for _, p := range []Part{m.Main, m.Stats} {
		for _, t := range p.Tables {
			sum += t.Rows
		}
	}
	return sum
}

// files returns all files that the manifest names.
func (m *Manifest) files() func(yield func(File) bool) {
	return func(yield func(File) bool) {
		for _, p := range []Part{m.Main, m.Stats} {
			for _, t := range p.Tables {
				for _, f := range t.Files {
					if !yield(f) {
						return
					}
				}
			}
		}
		for _, f := range slices.Concat(m.Blobs.Files, m.Lost.Files) {
			if !yield(f) {
				return
			}
		}
	}
}

// ofLost returns the manifest as if the backup had only the blobs that were marked as lost.
func (m *Manifest) ofLost() *Manifest {
	lost := *m
	lost.Blobs = m.Lost
	return &lost
}

func (m *Manifest) dir() string { return backupsDir + m.ID + "/" }

// sealed is the content of a manifest's file: the manifest with a hash over its text.
type sealed struct {
	SHA256   string          `json:"sha256"`
	Manifest json.RawMessage `json:"manifest"`
}

// ErrDamaged says that a backup isn't what was written: a file is missing or has other bytes.
var ErrDamaged = errors.New("the backup is damaged")

func (m *Manifest) write(ctx context.Context, t Target) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	b, err := json.Marshal(sealed{hex.EncodeToString(sum[:]), text})
	if err != nil {
		return err
	}
	return putBytes(ctx, t, m.dir()+manifestName, append(b, '\n'))
}

func readManifest(ctx context.Context, t Target, id string) (*Manifest, error) {
	b, err := readAll(ctx, t, backupsDir+id+"/"+manifestName)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of backup %s: %w", id, err)
	}
	var s sealed
	err = json.Unmarshal(b, &s)
	sum := sha256.Sum256(s.Manifest)
	if err != nil || hex.EncodeToString(sum[:]) != s.SHA256 {
		return nil, fmt.Errorf("%w: the manifest of backup %s doesn't have the bytes that were written", ErrDamaged, id)
	}
	m := new(Manifest)
	dec := json.NewDecoder(bytes.NewReader(s.Manifest))
	if err := dec.Decode(m); err != nil {
		return nil, fmt.Errorf("%w: reading the manifest of backup %s: %w", ErrDamaged, id, err)
	}
	if m.Format != format && m.Format != formatLost {
		return nil, fmt.Errorf("backup %s has format %d, and this version of Purser reads formats up to %d: use the version that wrote it (%s) or a newer one",
			id, m.Format, formatLost, m.Purser)
	}
	if m.ID != id {
		return nil, fmt.Errorf("%w: the manifest of backup %s is that of backup %s", ErrDamaged, id, m.ID)
	}
	return m, nil
}

// Entry is a backup in a target.
type Entry struct {
	ID       string
	Manifest *Manifest // nil: the backup is incomplete or damaged
	Err      error     // why the manifest can't be read; nil if there is none
	files    []string
}

// complete says whether the backup has a manifest.
func (e Entry) complete() bool { return e.Manifest != nil }

// List returns the backups in a target, oldest first. It returns ErrNoTarget if there is
// none.
func List(ctx context.Context, t Target) ([]Entry, error) {
	if _, err := readMark(ctx, t); err != nil {
		return nil, err
	}
	return list(ctx, t)
}

func list(ctx context.Context, t Target) ([]Entry, error) {
	byID := make(map[string]*Entry)
	for f, err := range t.Files(ctx, backupsDir) {
		if err != nil {
			return nil, err
		}
		id, name, ok := strings.Cut(strings.TrimPrefix(f.Key, backupsDir), "/")
		if _, err := time.Parse(idLayout, id); !ok || err != nil {
			continue // not ours
		}
		e := byID[id]
		if e == nil {
			e = &Entry{ID: id}
			byID[id] = e
		}
		e.files = append(e.files, f.Key)
		if name == manifestName {
			e.Manifest, e.Err = readManifest(ctx, t, id)
		}
	}
	var out []Entry
	for _, e := range byID {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Find returns the manifest of the backup with this id or, if `id` is "", of the newest complete
// one.
func Find(ctx context.Context, t Target, id string) (*Manifest, error) {
	all, err := List(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Backward(all) {
		switch {
		case id != "" && e.ID != id:
		case e.Err != nil:
			// A newer backup that is damaged isn't passed over in silence.
			return nil, fmt.Errorf("%w; name another backup, see \"purser backup list %s\"", e.Err, t.Place())
		case e.complete():
			return e.Manifest, nil
		case id != "":
			return nil, fmt.Errorf("backup %s in %s is incomplete: it was interrupted", id, t.Place())
		}
	}
	if id != "" {
		return nil, fmt.Errorf("there is no backup %s in %s", id, t.Place())
	}
	return nil, fmt.Errorf("there is no complete backup in %s", t.Place())
}

// ErrNoTarget says that a directory or prefix has no backups.
var ErrNoTarget = errors.New("there are no backups of Purser")

// mark is the content of markFile.
type mark struct {
	Format int    `json:"format"`
	Store  string `json:"store"` // the identity of the registry's blob store
	Note   string `json:"note"`
}

const markNote = `Backups of a Purser registry. "purser backup list" lists them, and "purser restore" restores one. ` +
	"The directory objects belongs to all of them. Keep this file."

func readMark(ctx context.Context, t Target) (mark, error) {
	var m mark
	b, err := readAll(ctx, t, markFile)
	if errors.Is(err, blob.ErrNotFound) {
		return m, fmt.Errorf("%w in %s", ErrNoTarget, t.Place())
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return m, fmt.Errorf("reading %s in %s: %w", markFile, t.Place(), err)
	}
	return m, nil
}

// prepareTarget marks an empty target as the one of the registry whose blob store has the
// identity `store`. It refuses a target of another registry, and a place with other files.
func prepareTarget(ctx context.Context, t Target, store string) error {
	m, err := readMark(ctx, t)
	switch {
	case err == nil && m.Store != store:
		return fmt.Errorf("%s has the backups of another registry, whose blob store has the identity %s and not %s: name another place",
			t.Place(), m.Store, store)
	case err == nil || !errors.Is(err, ErrNoTarget):
		return err
	}
	for f, err := range t.Files(ctx, "") {
		if err != nil {
			return err
		}
		if strings.HasSuffix(f.Key, ".part") {
			continue // of a backup that was interrupted while it wrote the mark
		}
		return fmt.Errorf("%s has other files, such as %s, and no backups: name an empty place", t.Place(), f.Key)
	}
	b, err := json.MarshalIndent(mark{format, store, markNote}, "", "  ")
	if err != nil {
		return err
	}
	return putBytes(ctx, t, markFile, append(b, '\n'))
}
