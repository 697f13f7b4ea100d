//go:build all

package e2e

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// typist is a person with a phone's screen and a keyboard, and without a mouse. It counts the pages that the
// keys have led to.
type typist struct {
	*browser
	pages *atomic.Int64
}

// newTypist starts a browser 390 px wide, in which an account is logged in.
func newTypist(t *testing.T, r *registry, account string) typist {
	t.Helper()
	p := typist{newBrowser(t), new(atomic.Int64)}
	err := chromedp.Listen(p.ctx, func(event any) {
		if e, ok := event.(*network.EventResponseReceived); ok && e.Type == network.ResourceTypeDocument {
			p.pages.Add(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	p.look(390, 844, "light")
	p.logIn(r, "/ui/account", account)
	p.browser.open(r.URL() + "/ui/")
	return p
}

// focusedName is a script that returns how a screen reader calls the element with the focus.
const focusedName = `(e => {
	const text = e => (e.innerText || e.textContent || "").trim().replace(/\s+/g, " ");
	const group = e.closest?.("fieldset")?.querySelector("legend");
	let name = e.getAttribute?.("aria-label") || "";
	if (!name && e.labels?.length) name = text([...e.labels][0].querySelector("span") || [...e.labels][0]);
	if (!name) name = e == document.body ? "" : text(e) || e.title || e.placeholder || e.name || "";
	return e.type == "radio" && group ? text(group) + ": " + name : name;
})(document.activeElement)`

// most is how many elements of a page one goes through at most.
const most = 300

// to moves the focus by the Tab key to the next element with the name.
func (p typist) to(name string) {
	p.t.Helper()
	var seen []string
	for range most {
		p.do("going on", keys(kb.Tab))
		now := eval[string](p.browser, focusedName)
		if now == name {
			p.isSeen(name)
			return
		}
		seen = append(seen, now)
	}
	p.t.Fatalf("the keyboard reaches no %q at %s, but %q", name, p.location(), seen)
}

// toThat moves the focus to the next element whose name begins so.
func (p typist) toThat(prefix string) {
	p.t.Helper()
	for range most {
		p.do("going on", keys(kb.Tab))
		if now := eval[string](p.browser, focusedName); strings.HasPrefix(now, prefix) {
			p.isSeen(now)
			return
		}
	}
	p.t.Fatalf("the keyboard reaches nothing that begins with %q at %s", prefix, p.location())
}

// search goes to the box at the top by its key, and types.
func (p typist) search(text string) {
	p.t.Helper()
	p.do("going to the search", keys("/"))
	p.wait("the search has the focus", `document.activeElement.name == "q"`)
	if eval[string](p.browser, `document.activeElement.value`) == "/" { // the driver sends the character also where the page has taken the key
		p.do("deleting", keys(kb.Backspace))
	}
	p.do("typing", keys(text))
}

// toggle presses the space bar.
func (p typist) toggle() {
	p.t.Helper()
	p.do("toggling", keys(" "))
}

// keys presses the keys of a text.
func keys(text string) chromedp.Action[chromedp.Void] { return chromedp.KeyEvent(text) }

// isSeen fails the test if the element with the focus isn't on the screen or doesn't show that it has the focus.
func (p typist) isSeen(name string) {
	p.t.Helper()
	why := eval[string](p.browser, `(e => {
		const r = e.getBoundingClientRect(), s = getComputedStyle(e);
		if (r.width == 0 || r.height == 0) return "it has no size";
		if (r.left < -1 || r.right > innerWidth + 1) return "it reaches from " + r.left + " to " + r.right + " of " + innerWidth + " px";
		if (r.bottom < 0 || r.top > innerHeight) return "it isn't scrolled to";
		if (s.outlineStyle == "none" && s.boxShadow == "none") return "it doesn't show that it has the focus";
		return "";
	})(document.activeElement)`)
	if why != "" {
		p.t.Errorf("%q at %s: %s", name, p.location(), why)
	}
}

// unfold opens a part of the page that is behind its heading, such as the menu.
func (p typist) unfold(name string) {
	p.t.Helper()
	p.to(name)
	p.do("opening "+name, chromedp.KeyEvent(kb.Enter))
	if !eval[bool](p.browser, `document.activeElement.closest("details").open`) {
		p.do("opening "+name, chromedp.KeyEvent(kb.Enter))
	}
}

// fill goes to a field and types.
func (p typist) fill(name, text string) {
	p.t.Helper()
	p.to(name)
	p.do("typing", chromedp.KeyEvent(text))
}

// pick chooses an option of the field with the name.
func (p typist) pick(name, option string) {
	p.t.Helper()
	p.to(name)
	p.do("going to the first", keys(kb.Home))
	for range 40 {
		if eval[string](p.browser, `document.activeElement.selectedOptions[0].text`) == option {
			return
		}
		p.do("choosing", chromedp.KeyEvent(kb.ArrowDown))
	}
	p.t.Fatalf("%q has no %q at %s, but %q", name, option, p.location(), eval[[]string](p.browser, `[...document.activeElement.options].map(o => o.text)`))
}

// press presses a button or follows a link, and waits for the page behind it.
func (p typist) press(name string) {
	p.t.Helper()
	p.to(name)
	p.enter()
}

// enter presses Enter, and waits for the page that it leads to. It answers a question of the page with yes.
func (p typist) enter() {
	p.t.Helper()
	before := p.pages.Load()
	p.answer()
	p.do("pressing Enter", chromedp.KeyEvent(kb.Enter))
	eventually(p.t, time.Minute, func() error {
		if p.pages.Load() == before {
			return errors.New("no page is loaded")
		}
		ready, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool](`document.readyState == "complete" && Boolean(document.querySelector("main, form"))`))
		if err == nil && !ready {
			err = errors.New("the page isn't complete")
		}
		return err
	})
	p.mu.Lock()
	p.accept = false
	p.mu.Unlock()
}

// menu opens the menu, and follows one of its links.
func (p typist) menu(name string) {
	p.t.Helper()
	p.unfold("Menu")
	p.press(name)
}
