package handbook

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
)

const (
	// maxHits is how many places a search finds at most, and maxWords how many words of the text it
	// looks for.
	maxHits  = 30
	maxWords = 8
	// shownText is how many bytes of a place's text are shown.
	shownText = 240
)

// section is what stands below a heading, down to the next.
type section struct {
	heading, anchor string
	text            string // without markup, code included
	lower           string // heading and text in lower case
}

// Hit is a place that a search has found.
type Hit struct {
	Page    string // its title
	Heading string // "": the page's beginning
	Path    string
	Text    []Part // of the place, around the words

	score int
}

// Part is a part of a text. Found says that it is one of the words.
type Part struct {
	Text  string
	Found bool
}

func sectionsOf(p *Page, root ast.Node, source []byte) (list []section) {
	current := section{}
	var b strings.Builder
	end := func() {
		current.text = strings.Join(strings.Fields(b.String()), " ")
		current.lower = strings.ToLower(current.heading + " " + current.text)
		if current.text != "" || current.heading != "" {
			list = append(list, current)
		}
		b.Reset()
	}
	for n := root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			if h.Level == 1 {
				continue
			}
			end()
			current = section{heading: textOf(h, source), anchor: anchorOf(h)}
			continue
		}
		writeText(&b, n, source)
		b.WriteByte(' ')
	}
	end()
	return list
}

// Search returns the places that have all words of a text in their page's title, their heading or
// their text, best first. Capitals count as small letters.
func Search(text string) []Hit {
	words := wordsOf(text)
	if len(words) == 0 {
		return nil
	}
	var hits []Hit
	for _, name := range Names() {
		p := pages()[name]
		title := strings.ToLower(p.Title)
		for _, s := range p.sections {
			score := score(title, s, words)
			if score == 0 {
				continue
			}
			h := Hit{Page: p.Title, Heading: s.heading, Path: p.Path(), Text: excerpt(s.text, words), score: score}
			if s.anchor != "" {
				h.Path += "#" + s.anchor
			}
			hits = append(hits, h)
		}
	}
	slices.SortStableFunc(hits, func(a, b Hit) int { return cmp.Compare(b.score, a.score) })
	return hits[:min(len(hits), maxHits)]
}

// wordsOf returns the words of a text in small letters, maxWords at most. A single letter is left out
// unless there is nothing else.
func wordsOf(text string) []string {
	words := strings.Fields(strings.ToLower(text))
	slices.Sort(words)
	words = slices.Compact(words)
	longer := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return utf8.RuneCountInString(w) < 2 })
	if len(longer) > 0 {
		words = longer
	}
	return words[:min(len(words), maxWords)]
}

// score says how well a section fits the words, 0 if it lacks one. A word in a heading says more than
// one in the text, and one at the beginning of a word more than one inside.
func score(title string, s section, words []string) int {
	heading, sum := strings.ToLower(s.heading), 0
	for _, w := range words {
		part := 0
		if strings.Contains(title, w) {
			part += 4
		}
		if begins(heading, w) {
			part += 12
		}
		if n := strings.Count(s.lower, w); n > 0 {
			part += min(n, 4)
			if begins(s.lower, w) {
				part += 3
			}
		}
		if part == 0 {
			return 0
		}
		sum += part
	}
	return sum
}

// begins says whether a word of the text begins with w.
func begins(text, w string) bool {
	for from := 0; ; {
		i := strings.Index(text[from:], w)
		if i < 0 {
			return false
		}
		i += from
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		if i == 0 || !unicode.IsLetter(before) && !unicode.IsNumber(before) {
			return true
		}
		from = i + len(w)
	}
}

// excerpt returns the part of a text that begins a little before the first of the words in it, with
// the words marked.
func excerpt(text string, words []string) []Part {
	lower := strings.ToLower(text)
	if len(lower) != len(text) { // some letters have other lengths in small: then nothing is marked
		return []Part{{Text: cut(text, shownText)}}
	}
	first := len(text)
	for _, w := range words {
		if i := strings.Index(lower, w); i >= 0 {
			first = min(first, i)
		}
	}
	from := 0
	if first < len(text) && first > shownText/3 {
		from = first - shownText/3
		for from < first && text[from-1] != ' ' {
			from++
		}
	}
	shown := cut(text[from:], shownText)
	parts := marked(shown, words)
	if from > 0 {
		parts = append([]Part{{Text: "… "}}, parts...)
	}
	return parts
}

// cut returns the first n bytes of a text, or fewer so that no word is cut.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	if i := strings.LastIndexByte(text[:n], ' '); i > 0 {
		n = i
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + " …"
}

// marked splits a text at the words in it.
func marked(text string, words []string) (parts []Part) {
	lower := strings.ToLower(text)
	for len(text) > 0 {
		at, length := len(text), 0
		for _, w := range words {
			if i := strings.Index(lower, w); i >= 0 && (i < at || i == at && len(w) > length) {
				at, length = i, len(w)
			}
		}
		if at > 0 {
			parts = append(parts, Part{Text: text[:at]})
		}
		if length > 0 {
			parts = append(parts, Part{Text: text[at : at+length], Found: true})
		}
		text, lower = text[at+length:], lower[at+length:]
	}
	return parts
}
