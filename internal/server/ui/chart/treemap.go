package chart

import (
	"slices"
	"strconv"
)

// Measures of a Treemap, in the units of its viewBox.
const (
	TreemapWidth, TreemapHeight = 720, 300
	maxTiles                    = 40
)

// Area is something with a size.
type Area struct {
	Name, Link string
	Size       int64
}

// Treemap is a rectangle that is divided among areas by their sizes.
type Treemap struct {
	ID, Title string
	Tiles     []Tile
}

// Tile is the rectangle of an area. Text is empty if there is no room for it.
type Tile struct {
	Area
	X, Y, Width, Height float64
	Title, Text, More   string
	Shade               int // 0 to 3, for neighbours to differ
}

// NewTreemap divides the rectangle, the largest area first. Areas that are too small to be seen, or too many,
// get one tile together, which has no link, or none if that would be too small. `format` writes a size.
//
// It is the squarified layout: a row takes further areas, along the shorter side of what is left, for as long
// as that makes its tiles less oblong.
func NewTreemap(id, title string, areas []Area, format func(any) string) Treemap {
	list := slices.DeleteFunc(slices.Clone(areas), func(a Area) bool { return a.Size <= 0 })
	slices.SortStableFunc(list, func(a, b Area) int { return compare(b.Size, a.Size) })
	t := Treemap{ID: id, Title: title}
	total := 0.0
	for _, a := range list {
		total += float64(a.Size)
	}
	scale := TreemapWidth * TreemapHeight / total // of a unit of size
	list = joinSmall(list, scale)
	left := rectangle{0, 0, TreemapWidth, TreemapHeight}
	for len(list) > 0 {
		n := rowLength(list, scale, left.side())
		for _, tile := range left.cut(list[:n], scale) {
			tile.Shade = len(t.Tiles) % 4
			tile.describe(format)
			t.Tiles = append(t.Tiles, tile)
		}
		list = list[n:]
	}
	return t
}

// smallest is the least area of a tile.
const smallest = 9

// joinSmall returns the areas, the largest first, with one in place of those that get no tile of their own.
func joinSmall(list []Area, scale float64) []Area {
	n := slices.IndexFunc(list, func(a Area) bool { return float64(a.Size)*scale < smallest })
	if n < 0 {
		n = len(list)
	}
	if n = min(n, maxTiles-1); n >= len(list)-1 && len(list) <= maxTiles && (n == len(list) || float64(list[n].Size)*scale >= smallest) {
		return list
	}
	others := Area{Name: strconv.Itoa(len(list)-n) + " others"}
	for _, a := range list[n:] {
		others.Size += a.Size
	}
	list = list[:n]
	if float64(others.Size)*scale >= smallest {
		list = append(list, others)
		slices.SortStableFunc(list, func(a, b Area) int { return compare(b.Size, a.Size) })
	}
	return list
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// rowLength returns how many of the areas the next row takes, whose tiles lie along a side.
func rowLength(list []Area, scale, side float64) int {
	sum, best, n := 0.0, 0.0, 0
	for i, a := range list {
		sum += float64(a.Size) * scale
		thickness := sum / side
		worst := 0.0
		for _, b := range list[:i+1] {
			length := float64(b.Size) * scale / thickness
			worst = max(worst, length/thickness, thickness/length)
		}
		if i > 0 && worst > best {
			break
		}
		best, n = worst, i+1
	}
	return n
}

// rectangle is what isn't divided yet.
type rectangle struct{ x, y, width, height float64 }

// side is the shorter side. It isn't 0, also if what is left is nothing but a rounding error.
func (r *rectangle) side() float64 { return max(min(r.width, r.height), 1e-6) }

// cut takes a row of tiles off the rectangle, along its shorter side.
func (r *rectangle) cut(list []Area, scale float64) (tiles []Tile) {
	sum := 0.0
	for _, a := range list {
		sum += float64(a.Size) * scale
	}
	wide := r.width >= r.height
	thickness, at := sum/r.side(), 0.0
	for _, a := range list {
		length := float64(a.Size) * scale / thickness
		if wide {
			tiles = append(tiles, Tile{Area: a, X: r.x, Y: r.y + at, Width: thickness, Height: length})
		} else {
			tiles = append(tiles, Tile{Area: a, X: r.x + at, Y: r.y, Width: length, Height: thickness})
		}
		at += length
	}
	if wide {
		r.x, r.width = r.x+thickness, r.width-thickness
	} else {
		r.y, r.height = r.y+thickness, r.height-thickness
	}
	return tiles
}

// Measures of a tile's text: of a character, and of a line.
const charWidth, lineHeight = 7.5, 18

// describe sets the tile's texts, which end where the tile does.
func (t *Tile) describe(format func(any) string) {
	size := format(t.Size)
	t.Title = t.Name + ": " + size
	room := int((t.Width - 12) / charWidth)
	if t.Height < lineHeight+6 || room < 4 {
		return
	}
	name := []rune(t.Name)
	if len(name) > room {
		name = append(name[:room-1], '…')
	}
	t.Text = string(name)
	if t.Height >= 2*lineHeight+6 && len(size) <= room {
		t.More = size
	}
}

// Wide says that the first line has room also where the picture is half as large and its letters are not.
func (t Tile) Wide() bool {
	return t.Height >= 2*lineHeight+6 && float64(2*len([]rune(t.Text)))*charWidth <= t.Width-12
}

// TextX and TextY are where the first line begins, MoreY where the second does.
func (t Tile) TextX() float64 { return Round(t.X + 6) }
func (t Tile) TextY() float64 { return Round(t.Y + lineHeight) }
func (t Tile) MoreY() float64 { return Round(t.Y + 2*lineHeight) }
