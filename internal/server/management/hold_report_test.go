package management

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// endless repeats a text, and counts what was read.
type endless struct {
	text string
	n    int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.text[(e.n+i)%len(e.text)]
	}
	e.n += len(p)
	return len(p), nil
}

// newReportReader returns the reader of a report, and the lease from which it takes memory.
func newReportReader(in io.Reader) (*reportReader, *limit.Lease) {
	lease := limit.NewBudget(limit.BudgetOptions{Total: 1 << 30, Share: 100}).Lease("client")
	return &reportReader{body: &server.RequestBody{Lease: lease}, in: in, most: 200_000}, lease
}

// TestLongValuesOfReports: a value of a report never ends. The report must be refused after
// maxValue bytes of the value, and what was read of it must count in the memory of the request.
func TestLongValuesOfReports(t *testing.T) {
	t.Parallel()
	item := `{"digest":"` + oci.Compute(oci.SHA256, nil).String() + `","used_by":"pod"}`
	for begin, rest := range map[string]string{
		``: " ", `{`: " ", `{"`: "a", `{"digests":["`: "a", `{"digests":[{"digest":"`: "a", `{"add":[{"used_by":"`: "\xff", `{"add":[{"x":[`: "1,",
		`{"base":`: "1", `{"remove":["`: "a", `{"unresolved":[{"name":"`: "a", `{"digests":[]`: " ", `{"digests":[]}`: "\n",
		`{"digests":[` + strings.Repeat(item+",", 5000) + `{"used_by":"`: "a",
	} {
		of := &endless{text: rest}
		r, lease := newReportReader(io.MultiReader(strings.NewReader(begin), of))
		err := r.object(new(hold.Report))
		if e, ok := errors.AsType[*oci.Error](err); !ok || e.HTTPStatus() != http.StatusRequestEntityTooLarge || len(e.Error()) > 300 {
			t.Errorf("%.40s: %.300v", begin, err)
		}
		if of.n > maxValue || lease.Held() < maxValue {
			t.Errorf("%.40s: %d bytes of the value were read, and %d bytes of memory taken", begin, of.n, lease.Held())
		}
	}
}

// TestMemoryOfReports: what a report keeps of long items counts in the memory of the request, and an
// item may have as many names as there may be.
func TestMemoryOfReports(t *testing.T) {
	t.Parallel()
	const n = 20
	used := fmt.Sprintf(`{"digest":"%s","used_by":"%s"}`, oci.Compute(oci.SHA256, nil), strings.Repeat("a", 200_000))
	unresolved := fmt.Sprintf(`{"name":"x","reason":"%s"}`, strings.Repeat("a", 200_000))
	named := fmt.Sprintf(`{"digest":"%s","names":["%s"]}`, oci.Compute(oci.SHA256, nil),
		strings.Join(slices.Repeat([]string{strings.Repeat("a", 1024)}, 100), `","`))
	for member, element := range map[string]string{`"digests"`: used, `"digests":[],"unresolved"`: unresolved, `"add"`: named} {
		body := `{` + member + `:[` + strings.Repeat(element+",", n-1) + element + `]}`
		r, lease := newReportReader(strings.NewReader(body))
		report := new(hold.Report)
		if err := r.object(report); err != nil {
			t.Errorf("%s: %.300v", member, err)
		}
		if got := len(report.Items) + len(report.Unresolved); got != n || lease.Held() < int64(len(body)) {
			t.Errorf("%s: %d items of %d bytes, for which %d bytes of memory were taken", member, got, len(body), lease.Held())
		}
	}
}

// TestErrorsOfReportsAreShort: names and values that a client sends don't come back whole.
func TestErrorsOfReportsAreShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 200_000)
	for _, body := range []string{
		`{"` + long + `":[]}`, `{"digests":["` + long + `"]}`, `{"digests":[{"` + long + `":1}]}`, `{"base":"` + long + `"}`, `"` + long + `"`,
		`{"remove":[` + strings.Repeat("1", 200_000) + `]}`, `{"digests":"` + long + `"}`,
	} {
		r, _ := newReportReader(strings.NewReader(body))
		if err := r.object(new(hold.Report)); err == nil || len(err.Error()) > 600 {
			t.Errorf("%.40s: %.1000v", body, err)
		}
	}
}
