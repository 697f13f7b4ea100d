package chart

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestTreemap: whatever the sizes are, each tile has its share of the rectangle, none lies over another or
// outside, and what is too much for one picture is told together.
func TestTreemap(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		var areas []Area
		total := 0.0
		for n := range r.IntN(120) {
			size := []int64{0, 1, r.Int64N(1000), r.Int64N(1 << 40), 1 << 50}[r.IntN(5)]
			areas = append(areas, Area{fmt.Sprint("namespace-", n), "/", size})
			total += float64(size)
		}
		tiles := NewTreemap("t", "T", areas, func(v any) string { return fmt.Sprint(v) }).Tiles
		if len(tiles) > maxTiles {
			t.Fatalf("%d tiles", len(tiles))
		}
		sum := 0.0
		for n, a := range tiles {
			sum += float64(a.Size)
			if share := float64(a.Size) / total * TreemapWidth * TreemapHeight; math.Abs(a.Width*a.Height-share) > 1e-3*TreemapWidth {
				t.Errorf("%d: %s has the area %g, want %g", i, a.Title, a.Width*a.Height, share)
			}
			if a.X < -1e-6 || a.Y < -1e-6 || a.X+a.Width > TreemapWidth+1e-6 || a.Y+a.Height > TreemapHeight+1e-6 {
				t.Errorf("%d: %s lies outside: %+v", i, a.Title, a)
			}
			if len([]rune(a.Text)) > int(a.Width/charWidth) || a.More != "" && a.MoreY() > a.Y+a.Height {
				t.Errorf("%d: the text of %s is longer than its tile: %+v", i, a.Title, a)
			}
			for _, b := range tiles[:n] {
				if min(a.X+a.Width, b.X+b.Width)-max(a.X, b.X) > 1e-6 && min(a.Y+a.Height, b.Y+b.Height)-max(a.Y, b.Y) > 1e-6 {
					t.Errorf("%d: %s lies over %s", i, a.Title, b.Title)
				}
			}
		}
		if unseen := (total - sum) / total * TreemapWidth * TreemapHeight; total > 0 && (unseen > smallest || unseen < -1e-3) {
			t.Errorf("%d: the tiles stand for %g, want %g", i, sum, total)
		}
	}
	var many []Area
	for n := range 60 {
		many = append(many, Area{fmt.Sprint("n", n), "/", int64(1000 - n)})
	}
	tiles := NewTreemap("t", "T", many, func(v any) string { return fmt.Sprint(v) }).Tiles
	if len(tiles) != maxTiles || !strings.HasPrefix(tiles[0].Title, "21 others: ") || tiles[0].Link != "" {
		t.Errorf("%d tiles, the first %q", len(tiles), tiles[0].Title)
	}
}
