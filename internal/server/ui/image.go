package ui

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"
	"github.com/purser-registry/purser/internal/server/ui/imagetree"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/api"
)

// manifestPath is the page of a manifest.
const manifestPath = "/ui/repositories/{repository}/-/manifests/{digest}"

func (u *UI) addImages() {
	u.add(manifestPath, showManifest, nil)
	u.add(manifestPath+"/raw", sendManifest, nil)
	u.add(tagPath, func(q *request) error { return q.showTag(http.StatusOK, typed{}, nil) }, changeTag)
	u.add("/ui/repositories/{repository}/-/history", func(q *request) error { return q.showHistory(nil) }, changeHistory)
}

// Limits of a manifest's page.
const (
	// Bytes of HTML for the text from clients in each part of the page.
	rawRoom, configRoom, annotationRoom, rowRoom, referrerRoom, otherRoom = 16_000, 12_000, 8_000, 10_000, 7_000, 6_000

	manifestRows = 30 // layers of an image, or manifests of an index, on a page
	manifestTags = 20
	manifestKeep = 20 // sentences about why it is kept
)

// layerRow is a layer of an image, with what made it, and its media type if that is unusual.
type layerRow struct {
	api.Layer
	Text, Type string
}

// childRow is a manifest that an index lists, with what is attached to it.
type childRow struct {
	*imagetree.Child
	Link      string
	Attached  []*childRow // attestations that BuildKit lists beside it in the index
	Referrers []*referrer
}

// manifestData is what the page of a manifest shows.
type manifestData struct {
	Repository, Kind, Type, Platform, RawLink string
	Info                                      api.DescribedManifest
	Layers                                    []layerRow  // of this page
	Manifests                                 []*childRow // of this page
	MoreTags                                  int64
	Platforms                                 []string
	Config                                    imageSettings
	Annotations                               []format.Pair
	AnnotationsLeft                           int
	From, To, Total                           int // of the layers or the manifests, from 1
	Pages                                     pages
	Tree                                      []*referrer
	TreeCut                                   bool // there are more
	Attached                                  []attachedTag
	Kept                                      [][]phrase
	Raw                                       string
	RawCut                                    bool
	Clients                                   []client
	Plot                                      *chart.Plot // of pulls, nil if there is nothing to show
}

// manifest returns the manifest of the page as inputs of the management API name it.
func (q *request) manifest() (api.ManifestItem, error) {
	d, err := digestIn("path.digest", q.values["digest"])
	return api.ManifestItem{InRepository: repositoryOf(q.repository()), Digest: d}, err
}

func showManifest(q *request) error {
	repository, digest := q.repository(), q.values["digest"]
	d := manifestData{Repository: repository, RawLink: link(manifestPath+"/raw", repository, digest)}
	of, err := q.manifest()
	if err != nil {
		return err
	}
	if d.Info, err = run(q, api.GetManifest, of); err != nil {
		return err
	}
	d.Clients = q.clients(pullOfManifest(repository, &d.Info))
	words, raw, others := format.Room(otherRoom), format.Room(rawRoom), format.Room(referrerRoom)
	text, cut := format.Indented(d.Info.ManifestData, rawRoom)
	d.Raw = raw.Clip(rawRoom, text)
	d.RawCut = cut || strings.HasSuffix(d.Raw, "…")
	d.describe(q, &words)
	if d.Info.Referrers.Rows > 0 {
		tree, err := q.referrerSource().Referrers(of)
		if err != nil {
			return err
		}
		d.Tree, d.TreeCut = describeReferrers(tree.First, repository, &others), tree.Cut
	}
	if err := q.attach(of, d.Manifests, &others); err != nil {
		return err
	}
	if d.Plot, err = pullPlot(q, api.GetManifestHistory, api.ManifestHistory{ManifestItem: of, HistoryDays: lastDays}); err != nil {
		return err
	}
	if d.Attached, err = q.attachedTags(repository, digest); err != nil {
		return err
	}
	why, err := run(q, api.ExplainManifest, of)
	if err != nil && !hidden(err) {
		return err
	}
	missing := textsOf(why.Missing.First)
	if d.Info.SubjectMissing {
		missing = append(missing, d.Info.Subject.String())
	}
	for _, s := range why.Explanation[:min(len(why.Explanation), manifestKeep)] {
		d.Kept = append(d.Kept, phrases(repository, format.Sentence(words.Clip(700, s)), missing))
	}
	p := q.repositoryPage(repository, "none")
	p.Title, p.Heading, p.Tabs = repository+"@"+format.ShortDigest(digest), d.heading(), nil
	p.Crumbs = append(p.Crumbs, crumb{repository, link("/ui/repositories/{repository}", repository)})
	p.Data = d
	p.Same = []same{call("GET", apiPath("/repository/%s/manifest/%s", repository, digest)), call("GET", apiPath("/repository/%s/manifest/%s/referrers", repository, digest))}
	if len(d.Kept) > 0 {
		p.Same = append([]same{command("purser gc explain %s@%s", repository, digest)}, p.Same...)
	}
	return q.show("image", p)
}

// heading names the manifest: what it is and the beginning of its digest.
func (d *manifestData) heading() string {
	text := []rune(d.Kind)
	return strings.ToUpper(string(text[:1])) + string(text[1:]) + " " + format.ShortDigest(d.Info.Digest)
}

// describe sets what the page shows of the manifest itself.
func (d *manifestData) describe(q *request, words *format.Room) {
	m := &d.Info
	d.Kind = format.KindOf(m.MediaType, m.ArtifactType)
	settings, annotations, rows := format.Room(configRoom), format.Room(annotationRoom), format.Room(rowRoom)
	if m.Config == nil || m.ArtifactType != m.Config.MediaType || format.Artifacts[m.ArtifactType] != "image" {
		d.Type = words.Clip(160, m.ArtifactType)
	}
	if c := m.Config; c != nil {
		d.Platform = words.Clip(80, c.Platform)
		d.Config = settingsOf(c, &settings)
	}
	var content v1.Index
	_ = json.Unmarshal([]byte(m.ManifestData), &content) //nolint:errcheck // the registry has checked it; without it there are no annotations
	d.Annotations, d.AnnotationsLeft = format.PairsOf(&annotations, 30, content.Annotations)
	if len(m.Tags) > manifestTags {
		m.Tags = m.Tags[:manifestTags]
	}
	d.MoreTags = m.TagCount.Rows - int64(len(m.Tags))
	m.Indexes = m.Indexes[:min(len(m.Indexes), manifestTags)]
	d.Total = max(len(m.Layers), len(m.Manifests))
	from, err := strconv.Atoi(q.query("page"))
	if err != nil || from < 1 || from >= d.Total {
		from = 0
	}
	to := min(from+manifestRows, d.Total)
	next := ""
	if to < d.Total {
		next = strconv.Itoa(to)
	}
	d.From, d.To, d.Pages = from+1, to, q.pagesOf(nil, next)
	if m.IsManifestList {
		d.describeChildren(from, to, &rows)
		return
	}
	for _, l := range m.Layers[from:to] {
		d.Layers = append(d.Layers, describeLayer(l, &rows))
	}
}

// describeChildren keeps the manifests on this page and sets what it shows of them.
func (d *manifestData) describeChildren(from, to int, words *format.Room) {
	m := &d.Info
	for _, child := range m.Manifests[:min(len(m.Manifests), 200)] {
		name := words.Clip(40, child.Platform)
		if name != "" && !strings.HasPrefix(name, "unknown") && len(d.Platforms) < 12 && !slices.Contains(d.Platforms, name) {
			d.Platforms = append(d.Platforms, name)
		}
	}
	for _, child := range imagetree.Children(m, from, to) {
		d.Manifests = append(d.Manifests, rowOf(child, d.Repository, words))
	}
}

func rowOf(child *imagetree.Child, repository string, words *format.Room) *childRow {
	row := &childRow{Child: child, Link: link(manifestPath, repository, child.Digest.String())}
	child.Platform, child.Kind = words.Clip(60, child.Platform), words.Clip(80, child.Kind)
	for _, a := range child.Attestations {
		row.Attached = append(row.Attached, rowOf(a, repository, words))
	}
	return row
}

// maxAttached is of how many manifests of an index a page asks for referrers.
const maxAttached = 12

// referrerSource is where the page's trees get referrers from.
func (q *request) referrerSource() imagetree.Source {
	return imagetree.Source{
		List: func(in api.ReferrerQuery) (api.ReferrerList, error) { return run(q, api.ListReferrers, in) }, NotFound: func(err error) bool { return statusOf(err) == http.StatusNotFound },
	}
}

// attach asks for the referrers of the manifests of an index. Theirs are on their own pages.
func (q *request) attach(of api.ManifestItem, rows []*childRow, words *format.Room) error {
	children := make([]*imagetree.Child, len(rows))
	for i, row := range rows {
		children[i] = row.Child
	}
	if err := q.referrerSource().Attach(of, children, maxAttached); err != nil {
		return err
	}
	for _, row := range rows {
		row.Referrers = describeReferrers(row.Child.Referrers, of.Repository, words)
	}
	return nil
}

// usualLayers are the media types of layers that need no mention.
var usualLayers = []string{
	"application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.oci.image.layer.v1.tar+zstd",
	"application/vnd.docker.image.rootfs.diff.tar.gzip",
}

func describeLayer(l api.Layer, words *format.Room) layerRow {
	row := layerRow{Layer: l, Text: words.Clip(300, strings.Join(l.Command, " "))}
	if row.Text == "" && l.Comment != nil {
		row.Text = words.Clip(300, *l.Comment)
	}
	if !slices.Contains(usualLayers, l.MediaType) {
		row.Type = words.Clip(100, l.MediaType)
	}
	return row
}

// imageSettings is what an image's configuration says about running it.
type imageSettings struct {
	Pairs               []format.Pair
	Env                 []string
	EnvLeft             int
	Labels              []format.Pair
	LabelsLeft          int
	Digest, Type        string
	Size                int64
	Known               bool // the configuration is that of an image
	Created             time.Time
	CreatedText, Author string
}

// settingsOf reads a configuration. Whoever pushed it chose its content, so members may have any
// type.
func settingsOf(c *api.ImageConfig, words *format.Room) (s imageSettings) {
	s = imageSettings{Digest: c.Digest.String(), Type: words.Clip(160, c.MediaType), Size: c.Size, Known: format.Artifacts[c.MediaType] == "image", Author: words.Clip(120, c.Author)}
	var err error
	if s.Created, err = time.Parse(time.RFC3339Nano, c.Created); err != nil {
		s.CreatedText = words.Clip(60, c.Created)
	}
	var members map[string]json.RawMessage
	if content, err := json.Marshal(c.Content); err != nil || json.Unmarshal(content, &members) != nil {
		return s
	}
	add := func(name, value string) {
		if value != "" {
			s.Pairs = append(s.Pairs, format.Pair{Name: name, Value: words.Clip(400, value)})
		}
	}
	add("Entrypoint", format.CommandLine(format.Lenient[[]string](members, "Entrypoint")))
	add("Command", format.CommandLine(format.Lenient[[]string](members, "Cmd")))
	add("Working directory", format.Lenient[string](members, "WorkingDir"))
	add("User", format.Lenient[string](members, "User"))
	add("Exposed ports", joinNames(format.Lenient[map[string]any](members, "ExposedPorts")))
	add("Volumes", joinNames(format.Lenient[map[string]any](members, "Volumes")))
	add("Stop signal", format.Lenient[string](members, "StopSignal"))
	env := format.Lenient[[]string](members, "Env")
	for i, text := range env {
		if i == 40 || *words <= 0 {
			s.EnvLeft = len(env) - i
			break
		}
		s.Env = append(s.Env, words.Clip(300, text))
	}
	s.Labels, s.LabelsLeft = format.PairsOf(words, 40, format.Lenient[map[string]string](members, "Labels"))
	return s
}

func joinNames(set map[string]any) string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names[:min(len(names), 30)], ", ")
}

// sendManifest answers with the manifest as it was pushed.
func sendManifest(q *request) error {
	of, err := q.manifest()
	if err != nil {
		return err
	}
	info, err := run(q, api.GetManifest, of)
	if err != nil {
		return err
	}
	h := q.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(info.ManifestData)))
	q.w.WriteHeader(http.StatusOK)
	if q.Method == http.MethodHead {
		return nil
	}
	_, err = q.w.Write([]byte(info.ManifestData))
	return err
}

// referrer is a manifest that refers to another, with those that refer to it.
type referrer struct {
	*imagetree.Referrer
	Link      string
	Referrers []*referrer
}

// describeReferrers sets what a page shows of referrers.
func describeReferrers(list []*imagetree.Referrer, repository string, words *format.Room) []*referrer {
	rows := make([]*referrer, len(list))
	for i, r := range list {
		r.Type, r.Says = words.Clip(100, r.Type), words.Clip(120, r.Says)
		rows[i] = &referrer{r, link(manifestPath, repository, r.Digest.String()), describeReferrers(r.Referrers, repository, words)}
	}
	return rows
}

// attachedTag is a tag that belongs to a manifest by its name, as cosign names signatures.
type attachedTag struct{ Name, What, Digest string }

// attachedTags lists tags like sha256-<digest>.sig, by which clients attach signatures to images
// on registries without lists of referrers.
func (q *request) attachedTags(repository, digest string) ([]attachedTag, error) {
	list, err := run(q, api.ListTags, api.TagQuery{
		InRepository: repositoryOf(repository), NameFilter: api.NameFilter{Prefix: imagetree.TagPrefix(digest)}, Sort: "name", Limit: 10,
	})
	if err != nil {
		return nil, err
	}
	var found []attachedTag
	for _, t := range list.Tags {
		found = append(found, attachedTag{t.Name, imagetree.TagKind(digest, t), t.ManifestDigest.String()})
	}
	return found, nil
}
