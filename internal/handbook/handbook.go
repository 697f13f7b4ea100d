// Package handbook makes HTML of the documentation's pages and finds words in them.
package handbook

import (
	"bytes"
	"fmt"
	"html/template"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/purser-registry/purser/docs"
)

// Root is the prefix of the pages' paths. The table of contents is there itself.
const Root = "/docs/"

// contents is the name of the page with the table of contents.
const contents = "README"

// Page is a page of the documentation.
type Page struct {
	Name  string // of the file, without ".md"
	Title string
	HTML  template.HTML // without the title
	// Headings are those of the second level, which the page's own table of contents lists.
	Headings []Heading

	sections []section
}

// Heading is a heading of a page.
type Heading struct{ Text, Anchor string }

// Path returns the path of the page.
func (p *Page) Path() string {
	if p.Name == contents {
		return Root
	}
	return Root + p.Name
}

// pages has all pages by their names. They are made when the first of them is asked for, which
// takes a tenth of a second.
var pages = sync.OnceValue(func() map[string]*Page {
	files, err := fs.Glob(docs.Pages, "*.md")
	if err != nil {
		panic(err)
	}
	all := make(map[string]*Page, len(files))
	for _, file := range files {
		source, err := docs.Pages.ReadFile(file)
		if err != nil {
			panic(err)
		}
		p, err := render(strings.TrimSuffix(file, ".md"), source)
		if err != nil {
			panic(err)
		}
		all[p.Name] = p
	}
	return all
})

// Get returns a page, that with the table of contents for the name "". It returns nil if there is
// none of the name.
func Get(name string) *Page {
	if name == "" {
		name = contents
	}
	return pages()[name]
}

// Names returns the names of all pages in order, the table of contents first.
func Names() []string {
	var list []string
	for name := range pages() {
		if name != contents {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return append([]string{contents}, list...)
}

// markdown reads what the pages use: tables and plain addresses besides CommonMark. HTML in a page
// stays text. Columns have no alignment, since that would be a style in the page.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignNone)), extension.Linkify),
	goldmark.WithParserOptions(parser.WithAutoHeadingID(), parser.WithASTTransformers(util.Prioritized(linkWriter{}, 100))),
)

// render makes a page of its Markdown.
func render(name string, source []byte) (*Page, error) {
	root := markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(anchors{}))))
	p := &Page{Name: name}
	title, ok := root.FirstChild().(*ast.Heading)
	if !ok || title.Level != 1 {
		return nil, fmt.Errorf("the page %s doesn't begin with its title", name)
	}
	p.Title = textOf(title, source)
	p.sections = sectionsOf(p, root, source)
	root.RemoveChild(root, title)
	for n := root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level == 2 {
			p.Headings = append(p.Headings, Heading{textOf(h, source), anchorOf(h)})
		}
	}
	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, source, root); err != nil {
		return nil, fmt.Errorf("making HTML of the page %s: %w", name, err)
	}
	html := strings.NewReplacer("<table>", `<div class="scroll"><table>`, "</table>", "</table></div>").Replace(b.String())
	p.HTML = template.HTML(html) //nolint:gosec // the pages are part of the program, and HTML in them is escaped
	return p, nil
}

// linkWriter makes links to other pages lead to them in the registry. Links to files of the source
// that aren't pages become the file's name, since a registry hasn't got them.
type linkWriter struct{}

func (linkWriter) Transform(root *ast.Document, _ text.Reader, _ parser.Context) {
	var links []*ast.Link
	ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) { //nolint:errcheck // the function returns no error
		if l, ok := n.(*ast.Link); ok && entering {
			links = append(links, l)
		}
		return ast.WalkContinue, nil
	})
	for _, l := range links {
		to, fragment, has := strings.Cut(string(l.Destination), "#")
		switch {
		case to == "" || strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:"):
			continue
		case path.Ext(to) == ".md" && !strings.Contains(to, "/"):
			to = (&Page{Name: strings.TrimSuffix(to, ".md")}).Path()
			if has {
				to += "#" + fragment
			}
			l.Destination = []byte(to)
		default:
			unlink(l, path.Clean(strings.TrimPrefix(to, "../")))
		}
	}
}

// unlink replaces a link by its text, and by the name of the file that it led to.
func unlink(l *ast.Link, file string) {
	parent := l.Parent()
	for c := l.FirstChild(); c != nil; {
		next := c.NextSibling()
		parent.InsertBefore(parent, l, c)
		c = next
	}
	parent.ReplaceChild(parent, l, ast.NewString([]byte(" ("+file+" in the source)")))
}

// anchors gives headings the anchors that they have on GitHub, on which the links of the pages rely.
type anchors map[string]int

func (a anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	var b strings.Builder
	for _, c := range strings.ToLower(string(value)) {
		switch {
		case unicode.IsLetter(c), unicode.IsNumber(c), c == '-', c == '_':
			b.WriteRune(c)
		case c == ' ':
			b.WriteByte('-')
		}
	}
	anchor := b.String()
	n := a[anchor]
	a[anchor]++
	if n > 0 {
		anchor = fmt.Sprintf("%s-%d", anchor, n)
	}
	return []byte(anchor)
}

func (a anchors) Put(value []byte) { a[string(value)]++ }

func anchorOf(n ast.Node) string {
	if id, ok := n.AttributeString("id"); ok {
		if b, ok := id.([]byte); ok {
			return string(b)
		}
	}
	return ""
}

// textOf returns the text of a node without markup.
func textOf(n ast.Node, source []byte) string {
	var b strings.Builder
	writeText(&b, n, source)
	return strings.Join(strings.Fields(b.String()), " ")
}

func writeText(b *strings.Builder, n ast.Node, source []byte) {
	switch n := n.(type) {
	case *ast.Text:
		b.Write(n.Segment.Value(source))
		if n.SoftLineBreak() || n.HardLineBreak() {
			b.WriteByte(' ')
		}
	case *ast.String:
		b.Write(n.Value)
	case *ast.AutoLink:
		b.Write(n.Label(source))
	case *ast.FencedCodeBlock, *ast.CodeBlock:
		lines := n.Lines()
		for i := range lines.Len() {
			at := lines.At(i)
			b.Write(at.Value(source))
		}
	}
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		writeText(b, c, source)
		if c.Type() == ast.TypeBlock {
			b.WriteByte(' ')
		}
	}
}
