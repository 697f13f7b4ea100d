package registries

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http/httputil"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

func TestDriveCountsAndGivesUp(t *testing.T) {
	t.Parallel()
	n := 0
	some := func(context.Context) error {
		n++
		switch {
		case n > 30:
			return errDone
		case n%3 == 0:
			return errors.New("every third")
		}
		return nil
	}
	always := func(context.Context) error { return errors.New("always") }
	w := drive(t.Context(), 0, []operation{some, always})
	if len(w.latencies) != 20 || w.errors != 10+maxConsecutiveErrors {
		t.Errorf("%d done, %d errors", len(w.latencies), w.errors)
	}
	if slices.Sort(w.messages); !slices.Equal(w.messages, []string{"always", "every third"}) {
		t.Errorf("messages %q", w.messages)
	}
	w = drive(t.Context(), 10*time.Millisecond, []operation{func(context.Context) error { return nil }})
	if len(w.latencies) == 0 || w.elapsed < 10*time.Millisecond || w.errors != 0 {
		t.Errorf("%d done in %v, %d errors", len(w.latencies), w.elapsed, w.errors)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w = drive(ctx, 0, []operation{func(ctx context.Context) error { cancel(); return ctx.Err() }})
	if w.errors != 0 || len(w.latencies) != 0 {
		t.Errorf("being interrupted counts: %+v", w)
	}
}

func TestLayersAreNewAndTheirDigestsRight(t *testing.T) {
	t.Parallel()
	// The layer has three chunks more than the source's block of random bytes. So the first
	// three chunks of the block are used twice, with different numbers.
	src, err := newLayerSource((blockSize + 3) * chunkSize)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 2 {
		l, err := src.new()
		if err != nil {
			t.Fatal(err)
		}
		var plain, chunked bytes.Buffer
		plain.Grow(int(src.size))
		chunked.Grow(int(src.size) + chunkSize)
		if err := l.each(func(b []byte) error { return writeAll(&plain, b) }); err != nil {
			t.Fatal(err)
		}
		if err := l.writeChunked(&chunked); err != nil {
			t.Fatal(err)
		}
		decoded, err := io.ReadAll(httputil.NewChunkedReader(&chunked))
		if err != nil || !bytes.Equal(decoded, plain.Bytes()) {
			t.Errorf("the chunked coding isn't of the same %d bytes: %d, %v", plain.Len(), len(decoded), err)
		}
		sum := sha256.Sum256(plain.Bytes())
		if want := "sha256:" + hex.EncodeToString(sum[:]); l.digest != want || int64(plain.Len()) != src.size {
			t.Errorf("digest %s of %d bytes, want %s of %d", l.digest, plain.Len(), want, src.size)
		}
		seen[l.digest] = true
		chunks := map[string]bool{}
		for c := range slices.Chunk(plain.Bytes(), chunkSize) {
			chunks[string(c[:64])] = true
		}
		if int64(len(chunks)) != src.chunks() {
			t.Errorf("%d distinct chunks of %d", len(chunks), src.chunks())
		}
	}
	if len(seen) != 2 {
		t.Error("layers are equal")
	}
	for _, size := range []int64{0, chunkSize - 1, chunkSize + 1} {
		if _, err := newLayerSource(size); err == nil {
			t.Errorf("size %d was taken", size)
		}
	}
}

func TestFixtureIsTheSameInEveryRun(t *testing.T) {
	t.Parallel()
	one, three := newFixture(1), newFixture(3)
	if one.hot[0].manifest.digest != three.hot[0].manifest.digest || one.big.digest != three.big.digest {
		t.Error("the fixture depends on its size")
	}
	digests := map[string]bool{}
	for i, img := range three.hot {
		if len(img.manifest.data) != manifestSize {
			t.Errorf("manifest %d has %d bytes", i, len(img.manifest.data))
		}
		digests[img.manifest.digest] = true
		var m imageManifest
		if err := json.Unmarshal(img.manifest.data, &m); err != nil {
			t.Fatal(err)
		}
		if m.Config.Digest != img.blobs[0].digest || len(m.Layers) != 2 || m.Layers[1].Digest != three.small(i).digest {
			t.Errorf("manifest %d: %+v", i, m)
		}
	}
	if len(digests) != 3 {
		t.Error("manifests are equal")
	}
}

func TestCheckTags(t *testing.T) {
	t.Parallel()
	tags := func(n int) []byte {
		list := make([]string, n)
		for i := range list {
			list[i] = fixtureTag(i)
		}
		return marshal(map[string]any{"name": "x", "tags": list})
	}
	if err := checkTags(tags(tagCount)); err != nil {
		t.Error(err)
	}
	twice := bytes.Replace(tags(tagCount), []byte(`"v1"`), []byte(`"v2"`), 1)
	for _, bad := range [][]byte{tags(tagCount - 1), tags(0), twice, []byte("no JSON")} {
		if err := checkTags(bad); err == nil {
			t.Errorf("%.40q was taken", bad)
		}
	}
}

func TestNewResultDividesByAllOperations(t *testing.T) {
	t.Parallel()
	w := window{
		latencies: []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond},
		errors:    1, elapsed: 2 * time.Second, client: 4 * time.Millisecond,
		usage: meter.Usage{Known: true, Server: 8 * time.Millisecond, Database: 2 * time.Millisecond, PSS: 1 << 20, RSS: 2 << 20},
	}
	r := newResult(stateEmpty, "w", "r", w, 1e6)
	if r.Operations != 3 || r.PerSecond != 1.5 || r.MBPerSecond != 1.5 || r.P50 != 2 || r.P99 != 3 {
		t.Errorf("%+v", r)
	}
	if cpu, ok := r.cpu(); !ok || *r.ServerCPU != 2000 || *r.DatabaseCPU != 500 || cpu != 2500 || r.ClientCPU != 1000 {
		t.Errorf("%+v", r)
	}
	w.usage.Known = false
	if r = newResult(stateEmpty, "w", "r", w, 0); r.ServerCPU != nil || r.MBPerSecond != 0 {
		t.Errorf("%+v", r)
	}
	if r = newResult(stateEmpty, "w", "r", window{}, 0); r.PerSecond != 0 || r.P99 != 0 {
		t.Errorf("%+v", r)
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	f := func(x float64) *float64 { return &x }
	row := func(state, registry string, rate, cpu float64) result {
		return result{
			State: state, Workload: "get-1MiB", Registry: registry, Operations: 10, Seconds: 5, PerSecond: rate,
			Rates: meter.Spread{Min: rate / 2, Median: rate, Max: 2 * rate}, BothCPU: meter.Spread{Min: cpu - 100, Median: cpu, Max: cpu + 100}, Foreign: 0.034, Stolen: 0.001,
			P50: 1.5, P99: 20, ServerCPU: f(cpu), DatabaseCPU: f(0), DeferredCPU: 5, ClientCPU: 12.34, PSSPeak: 10 << 20,
		}
	}
	base := row(stateEmpty, nameFile, 2000, 400)
	base.Baseline = true
	broken := row(stateEmpty, "broken", 1, 1)
	broken.Errors, broken.Messages, broken.ServerCPU, broken.BothCPU = 2, []string{"status 500"}, nil, meter.Spread{}
	broken.Noisy = 1
	rep := &report{Fill: 100_000, Results: []result{
		row(stateEmpty, "purser", 1000, 500), broken, base, row(stateFilled, "purser", 900, 550),
	}}
	var out bytes.Buffer
	if err := rep.write("", &out); err != nil {
		t.Fatal(err)
	}
	want := `Empty registry

workload  registry        ops/s    min    max  p50 ms  p99 ms  server µs  db µs  both µs  min  max  deferred µs  client µs  MB/s  PSS MiB  RSS MiB  foreign  stolen  errors  rate/base  CPU/base
get-1MiB  purser          1,000    500  2,000    1.50    20.0        500      0      500  400  600         5.00       12.3     -     10.0        -     3.4%    0.1%       0       0.50      1.25
get-1MiB  broken           1.00  0.500   2.00    1.50    20.0          -      -        -    -    -         5.00       12.3     -     10.0        -   3.4% !    0.1%    2 !!       0.00         -
get-1MiB  (ServeContent)  2,000  1,000  4,000    1.50    20.0        400      0      400  300  500         5.00       12.3     -     10.0        -     3.4%    0.1%       0          -         -
`
	head, rest, _ := strings.Cut(out.String(), "\nWith 100,000 manifests\n")
	if head != want {
		t.Errorf("table:\n%s\nwant:\n%s", head, want)
	}
	for _, line := range []string{
		"With 100,000 manifests, of the empty registry's figures",
		"get-1MiB  purser     0.90  1.00  1.00      1.10  1.00",
		"empty, get-1MiB, broken: status 500",
	} {
		if !strings.Contains(rest, line+"\n") {
			t.Errorf("no line %q in:\n%s", line, rest)
		}
	}
	if rep.marked() != 1 {
		t.Errorf("%d marked", rep.marked())
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for x, want := range map[float64]string{
		0: "0", 0.1234: "0.123", 0.9999: "1.00", 1.234: "1.23", 9.999: "10.0", 12.34: "12.3",
		99.96: "100", 999.6: "1,000", 1234567: "1,234,567",
	} {
		if got := number(x); got != want {
			t.Errorf("number(%v) = %s, want %s", x, got, want)
		}
	}
}
