package management

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// mayHold returns an error unless the client has the access in the namespace or, if there is
// none, may operate the registry.
func (a *API) mayHold(ctx context.Context, access auth.Access, namespace string) error {
	if namespace == "" {
		return a.server.Authorize(ctx, auth.Operate, auth.Registry)
	}
	return a.server.Authorize(ctx, access, auth.OfNamespace(namespace))
}

// holdsBy returns who sends a report for the namespace, and whether that account may end holds
// there: who may delete what is held may.
func (a *API) holdsBy(ctx context.Context, namespace string) (hold.By, error) {
	p := server.Observed(ctx).Principal
	by := hold.By{ID: p.ID, Name: p.Name}
	err := a.mayHold(ctx, auth.Delete, namespace)
	switch code := oci.CodeOf(err); {
	case err == nil:
		by.MayEnd = true
	case code == oci.Denied || code == oci.Unauthorized:
		err = nil
	}
	return by, err
}

// reportInput is the input of a report, whose body the operation itself reads.
type reportInput struct {
	api.HoldReporting
	request *http.Request
	writer  http.ResponseWriter
}

// Resolve keeps the request. huma calls it for each request.
func (in *reportInput) Resolve(ctx huma.Context) []error {
	in.request, in.writer = humago.Unwrap(ctx)
	return nil
}

// parseLease parses a duration such as 24h or 7d.
func parseLease(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n < 10_000 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, server.Refusal(http.StatusBadRequest, "lease: %q is no duration such as 90m, 24h or 7d", text).
			WithDetail(map[string]string{"field": "lease"})
	}
	return d, nil
}

// addHolds binds the operations on holds.
func (a *API) addHolds() {
	if a.opt.Holds == nil {
		return
	}
	register(a, api.ReportHolds, a.reportHolds)
	// huma would read the body if it knew of it when the operation is registered.
	report := a.bound[api.ReportHolds.ID].operation
	report.Metadata[streamKey], report.RequestBody = true, a.reportBody()
	a.addReporters()
	serve(a, api.ListRepositoryHolds, a.repositoryHolds)
}

func (a *API) reportHolds(ctx context.Context, in *reportInput) (*answer[hold.Reported], error) {
	if err := a.mayHold(ctx, auth.Hold, in.Namespace); err != nil {
		return nil, err
	}
	lease, err := parseLease(in.Lease)
	if err != nil {
		return nil, err
	}
	by, err := a.holdsBy(ctx, in.Namespace)
	if err != nil {
		return nil, err
	}
	report, err := a.readReport(in.writer, in.request)
	if err != nil {
		return nil, err
	}
	report.Lease, report.Kind = lease, in.Kind
	report.Cluster, report.ReplaceCluster, report.AllowEmpty = in.Cluster, in.ReplaceCluster, in.AllowEmpty
	report.By = by
	done, err := a.opt.Holds.Report(limit.WithLease(ctx, server.Observed(ctx).Lease), in.Place(), *report)
	return &answer[hold.Reported]{done}, err
}

// reportBody describes the body of a report.
func (a *API) reportBody() *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.HoldReport](), true, "")},
		"application/x-ndjson": {Schema: &huma.Schema{Type: huma.TypeString,
			Description: "The whole list, one item per line: a digest as a JSON string, or an object with digest and used_by. The last line ends with a newline"}},
	}}
}

// addReporters binds the operations on reporters.
func (a *API) addReporters() {
	holds := a.opt.Holds
	serve(a, api.ListHoldReporters, func(ctx context.Context, in *api.HoldReporterQuery) (*api.HoldReporterList, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		list, next, err := holds.List(ctx, in.Namespace, in.NextPage, in.Limit)
		return &api.HoldReporterList{Reporters: append([]hold.Reporter{}, list...), NextPage: next}, err
	})
	serve(a, api.GetHoldReporter, func(ctx context.Context, in *api.HoldReporterItem) (*hold.Reporter, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		r, err := holds.Get(ctx, in.Place())
		return &r, err
	})
	serve(a, api.DeleteHoldReporter, func(ctx context.Context, in *api.HoldReporterItem) (*api.None, error) {
		if err := a.mayHold(ctx, auth.Delete, in.Namespace); err != nil {
			return nil, err
		}
		return nil, holds.Delete(ctx, in.Place())
	})
	serve(a, api.ListHeldDigests, func(ctx context.Context, in *api.HeldDigestQuery) (*api.HeldDigestList, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		after, err := cursorDigest(in.NextPage)
		if err != nil {
			return nil, err
		}
		list, next, err := holds.Digests(ctx, in.Place(), after, in.Limit)
		return &api.HeldDigestList{Digests: append([]hold.Held{}, list...), NextPage: next.String()}, err
	})
}

// cursorDigest parses the place after which a page of digests begins, "" for the first page.
func cursorDigest(text string) (d oci.Digest, err error) {
	if text == "" {
		return d, nil
	}
	if d, err = oci.ParseDigest(text); err != nil {
		return d, server.Refusal(http.StatusBadRequest, "next_page is not valid: begin again without it").
			WithDetail(map[string]string{"field": "next_page"})
	}
	return d, nil
}

// repositoryHolds lists a page of the holds of a repository or, with a digest, those of a manifest.
func (a *API) repositoryHolds(ctx context.Context, in *api.RepositoryHoldQuery) (*api.RepositoryHoldList, error) {
	r, err := a.catalog.FindRepository(ctx, in.Repository)
	if err != nil {
		return nil, err
	}
	if in.Digest != "" {
		d, err := oci.ParseDigest(in.Digest)
		if err != nil {
			return nil, server.Refusal(http.StatusBadRequest, "digest: %v", err).WithDetail(map[string]string{"field": "digest"})
		}
		list, err := a.opt.Holds.OfManifest(ctx, r.NamespaceID, r.ID, d)
		return &api.RepositoryHoldList{Holds: append([]hold.Holder{}, list...)}, err
	}
	after, err := cursorDigest(in.NextPage)
	if err != nil {
		return nil, err
	}
	list, next, err := a.opt.Holds.Repository(ctx, r.NamespaceID, r.ID, after, in.Limit)
	return &api.RepositoryHoldList{Holds: append([]hold.Holder{}, list...), NextPage: next.String()}, err
}

const (
	// itemMemory is about how many bytes of memory an item of a report takes.
	itemMemory = 512
	// nameMemory is the same for each name of an item.
	nameMemory = 1024
	// itemBytes is how many bytes of the body an item may have on average.
	itemBytes = 512
	// maxValue is the longest item, or other value, of a report that is one JSON object, in bytes with
	// the space before it.
	maxValue = 256 << 10
	// maxLine is the longest line of a stream, in bytes.
	maxLine = 4 << 10
)

// reportReader reads the body of a report.
type reportReader struct {
	body *server.RequestBody
	in   io.Reader
	most int // items
	n    int
	used int64 // bytes of memory
}

// readReport reads a report from the body of a request, piece by piece. If it returns an error,
// the client gets it, and nothing was stored.
func (a *API) readReport(w http.ResponseWriter, r *http.Request) (*hold.Report, error) {
	given := r.Header.Get("Content-Type")
	t, _, err := mime.ParseMediaType(given)
	if err != nil || t != "application/json" && t != "application/x-ndjson" {
		return nil, server.Refusal(http.StatusUnsupportedMediaType, "the Content-Type is %.80q and should be application/json or application/x-ndjson", given)
	}
	most := a.opt.Holds.MaxDigests()
	longest := int64(most)*itemBytes + maxBody
	if r.ContentLength > longest {
		return nil, reportTooLong(most)
	}
	body := a.server.Body(w, r)
	reader := &reportReader{body: body, in: io.LimitReader(body, longest+1), most: most}
	report := new(hold.Report)
	if t == "application/json" {
		err = reader.object(report)
	} else {
		report.Full = true
		err = reader.lines(report)
	}
	if lost := body.LostError(); lost != nil { // it explains the error of the parser
		return nil, lost
	}
	if err == nil && body.Received > longest {
		err = reportTooLong(most)
	}
	return report, err
}

func reportTooLong(most int) error {
	return server.Refusal(http.StatusRequestEntityTooLarge, "the report has more than %d digests, or too many bytes", most).
		WithDetail(map[string]int{"most": most})
}

// item counts an item with so many names that has so many bytes in the body, and takes memory for it
// from the request's share.
func (r *reportReader) item(names int, size int64) error {
	if r.n++; r.n > r.most {
		return reportTooLong(r.most)
	}
	const step = 1000 * itemMemory
	before := r.used / step
	// A byte that is no UTF-8 becomes three.
	r.used += max(itemMemory+int64(names)*nameMemory, 3*size)
	if steps := r.used/step - before; steps > 0 || r.n == 1 {
		_, err := r.body.Lease.Take(r.body.Context(), max(1, steps)*step)
		return err
	}
	return nil
}

// valueReader is what a decoder of JSON reads from. The decoder keeps a value in memory until it has all
// of it, so the reader ends a value that is too long, and takes memory from the request's share for
// what the decoder keeps.
type valueReader struct {
	in     io.Reader
	lease  *limit.Lease
	ctx    context.Context
	read   int64 // bytes that the decoder has got
	done   int64 // those of them before the end of its last value
	taken  int64 // bytes of memory
	failed error // ended the reading, for the client
}

func (r *valueReader) Read(p []byte) (int, error) {
	kept := r.read - r.done
	if kept >= maxValue {
		r.failed = server.Refusal(http.StatusRequestEntityTooLarge, "the report has an item, or another value, of more than %d bytes", maxValue)
		return 0, r.failed
	}
	p = p[:min(int64(len(p)), maxValue-kept)]
	if more := kept + int64(len(p)) - r.taken; more > 0 {
		if _, err := r.lease.Take(r.ctx, more); err != nil {
			r.failed = err
			return 0, err
		}
		r.taken += more
	}
	n, err := r.in.Read(p)
	r.read += int64(n)
	return n, err
}

// valueDecoder tells its reader where each value ends.
type valueDecoder struct {
	*json.Decoder
	from *valueReader
}

func (d *valueDecoder) Token() (json.Token, error) {
	t, err := d.Decoder.Token()
	d.from.done = d.InputOffset()
	return t, err
}

// Decode decodes the next value.
func (d *valueDecoder) Decode(v any) error {
	err := d.Decoder.Decode(v)
	d.from.done = d.InputOffset()
	return err
}

func badReport(format string, args ...any) error {
	return server.Refusal(http.StatusBadRequest, "the report: "+format, args...)
}

// lines reads a stream of one item per line. The last line must end with a newline: otherwise a
// list that was cut off by the client could be taken for the whole list.
func (r *reportReader) lines(report *hold.Report) error {
	in := bufio.NewReaderSize(r.in, maxLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return badReport("line %d has no newline at its end, so the list may not be complete", n)
		case errors.Is(err, bufio.ErrBufferFull):
			return badReport("line %d is longer than %d bytes", n, maxLine)
		case err != nil:
			return err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var item api.HoldItem
		if err := json.Unmarshal(line, &item); err != nil {
			return badReport("line %d: %.400v", n, err)
		}
		if err := r.item(len(item.Names), int64(len(line))); err != nil {
			return err
		}
		report.Items = append(report.Items, hold.Item(item))
	}
}

// object reads a report as one JSON object, an api.HoldReport.
func (r *reportReader) object(report *hold.Report) error {
	values := &valueReader{in: r.in, lease: r.body.Lease, ctx: r.body.Context()}
	err := r.members(&valueDecoder{json.NewDecoder(values), values}, report)
	return cmp.Or(values.failed, err) // the first explains the error of the parser
}

// members reads the object's members.
func (r *reportReader) members(d *valueDecoder, report *hold.Report) error {
	if err := expect(d, "it", json.Delim('{')); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return badReport("%.400v", err)
		}
		member, _ := name.(string)
		if seen[member] {
			return badReport("the member %.40s is there twice", member)
		}
		seen[member] = true
		if err := r.member(d, member, report); err != nil {
			return err
		}
	}
	if err := expect(d, "it", json.Delim('}')); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badReport("there is more after its end")
	}
	switch report.Full = seen["digests"]; {
	case report.Full && (seen["base"] || seen["add"] || seen["remove"]):
		return badReport("it has digests, the whole list, and also base, add or remove, a difference")
	case !report.Full && !seen["add"] && !seen["remove"] && !seen["base"]:
		return badReport("it has none of the members digests, add, remove and base")
	}
	return nil
}

// member reads one member of the object.
func (r *reportReader) member(d *valueDecoder, name string, report *hold.Report) error {
	switch name {
	case "base":
		if err := d.Decode(&report.Base); err != nil {
			return badReport("base: %.400v", err)
		}
		return nil
	case "digests", "add":
		return r.list(d, name, func() (int, error) {
			var item api.HoldItem
			err := d.Decode(&item)
			report.Items = append(report.Items, hold.Item(item))
			return len(item.Names), err
		})
	case "remove":
		return r.list(d, name, func() (int, error) {
			var digest oci.Digest
			err := d.Decode(&digest)
			report.Remove = append(report.Remove, digest)
			return 0, err
		})
	case "unresolved":
		return r.list(d, name, func() (int, error) {
			var image api.UnresolvedImage
			err := d.Decode(&image)
			report.Unresolved = append(report.Unresolved, hold.Unresolved(image))
			return 2, err
		})
	}
	return badReport("it has a member %.40q; those that it may have are digests, base, add, remove and unresolved", name)
}

// list reads an array, for each element of which it calls `next`, which returns how many names the
// element has.
func (r *reportReader) list(d *valueDecoder, name string, next func() (names int, err error)) error {
	if err := expect(d, name, json.Delim('[')); err != nil {
		return err
	}
	for n := 1; d.More(); n++ {
		begin := d.InputOffset()
		names, err := next()
		if err != nil {
			return badReport("%s: item %d: %.400v", name, n, err)
		}
		if err := r.item(names, d.InputOffset()-begin); err != nil {
			return err
		}
	}
	return expect(d, name, json.Delim(']'))
}

// expect reads a bracket of `what`.
func expect(d *valueDecoder, what string, want json.Delim) error {
	got, err := d.Token()
	if err != nil {
		return badReport("%s: %.400v", what, err)
	}
	if got != want {
		return badReport("%s: %s is expected, not %.40q", what, want, fmt.Sprint(got))
	}
	return nil
}
