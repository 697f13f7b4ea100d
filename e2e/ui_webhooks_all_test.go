//go:build all

package e2e

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestUIWebhooks: an administrator makes a webhook and tries it. Its page says what the receiver has
// answered, by itself, and sends the notice again. A reader has no way there.
func TestUIWebhooks(t *testing.T) {
	var refuses atomic.Bool
	hooks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses.Load() {
			http.Error(w, "the disk is full", http.StatusInsufficientStorage)
		}
	}))
	t.Cleanup(hooks.Close)
	r, _ := startClosed(t, "PURSER_WEBHOOKS_ALLOW_PRIVATE=true")
	b := newBrowser(t)
	b.look(390, 844, "dark")
	const page = "/ui/namespaces/acme/-/webhooks"
	b.logIn(r, page, "admin")
	b.checkPage("no webhooks")
	b.do("making a webhook", chromedp.SendKeys(chromedp.CSS("#main input[name=url]"), hooks.URL+"/hook"), chromedp.Click(chromedp.CSS("#main input[value=push]")),
		chromedp.SendKeys(chromedp.CSS("#main input[name=title]"), "build"+kb.Enter), chromedp.WaitVisible(chromedp.CSS(".secret code")))
	if secret := eval[string](b, `document.querySelector(".secret code").textContent`); !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("the secret is %q", secret)
	}
	b.checkPage("a new webhook")
	b.do("trying it", chromedp.Click(chromedp.CSS("button[value=test]")))
	b.wait("the page says that it was delivered", `document.querySelector("#delivery")?.textContent.includes("a status from 200 to 299")`)
	b.checkPage("a notice that was delivered")

	refuses.Store(true)
	b.answer()
	b.do("sending it again", chromedp.Click(chromedp.CSS("#delivery button")))
	b.wait("the page says why it failed", `document.querySelector("#delivery")?.textContent.includes("507 Insufficient Storage: the disk is full")`)
	b.look(1280, 900, "dark")
	b.checkPage("a notice that failed")
	refuses.Store(false)
	b.do("sending it now", chromedp.Click(chromedp.CSS("#delivery button")))
	b.wait("it was delivered", `document.querySelector("#delivery")?.textContent.includes("a status from 200 to 299")`)

	b.open(r.URL() + page)
	b.checkPage("the webhooks")
	b.do("opening it", chromedp.Click(chromedp.CSS(`#main th a`)), chromedp.WaitVisible(chromedp.CSS("#deliveries")))
	b.checkPage("a webhook with a delivery")
	b.answer()
	b.do("deleting it", chromedp.Click(chromedp.CSS("button[value=delete]")))
	b.wait("it is gone", `document.querySelector("#main")?.textContent.includes("has no webhooks")`)

	reader := newBrowser(t)
	reader.logIn(r, "/ui/namespaces/acme", "reader")
	if n := eval[int](reader, `document.querySelectorAll('a[href="`+page+`"]').length`); n != 0 {
		t.Error("a reader is offered webhooks")
	}
	if status := reader.open(r.URL() + page); status != http.StatusForbidden {
		t.Errorf("a reader gets the webhooks: %d", status)
	}
}

// TestUIRobot: an administrator lets jobs of GitHub log in as a robot, by the example of its page, and
// takes that back.
func TestUIRobot(t *testing.T) {
	r, _ := startClosed(t)
	b := newBrowser(t)
	b.look(390, 844, "light")
	const page = "/ui/namespaces/acme/-/robots/ci"
	b.logIn(r, page, "admin")
	b.checkPage("a robot")
	b.do("opening the form", chromedp.Click(chromedp.CSS("#rule summary")), chromedp.WaitVisible(chromedp.CSS(`#rule a[href*="example=github"]`)))
	b.do("taking the example", chromedp.Click(chromedp.CSS(`#rule a[href*="example=github"]`)))
	b.wait("the issuer is there", `document.readyState == "complete" && document.querySelector("input[name=issuer]").value.includes("githubusercontent")`)
	subject := chromedp.CSS("input[name=subject]")
	b.do("naming everybody", chromedp.SendKeys(chromedp.CSS("input[name=audience]"), "registry.example.com"), chromedp.SendKeys(subject, "repo:*"+kb.Enter))
	b.wait("the refusal says why", `document.querySelector(".notice.bad")?.textContent.includes("Anybody can get tokens")`)
	b.checkPage("a rule that was refused")
	b.do("naming the owner", chromedp.Clear(subject), chromedp.SendKeys(subject, "repo:acme/app:ref:refs/heads/main"+kb.Enter))
	b.wait("the rule is listed", `document.querySelector(".notice")?.textContent.includes("The rule was added") && document.querySelector("button[value=unfederate]")`)
	b.look(1280, 900, "light")
	b.checkPage("a robot with a rule")
	says(t, string(r.administer(t, "GET", "/organization/acme/robots/ci/federation", "", http.StatusOK)), `"repo:acme/app:ref:refs/heads/main"`)
	b.answer()
	b.do("removing it", chromedp.Click(chromedp.CSS("button[value=unfederate]")))
	b.wait("it is gone", `document.querySelector(".notice")?.textContent.includes("The rule was removed") && !document.querySelector("button[value=unfederate]")`)
	b.answer()
	b.do("making a secret", chromedp.Click(chromedp.CSS("button[value=rotate]")), chromedp.WaitVisible(chromedp.CSS(".secret code")))
	if !eval[bool](b, `document.querySelector(".lines pre").textContent.includes(document.querySelector(".secret code").textContent)`) {
		t.Error("the ready lines lack the new secret")
	}
	b.checkPage("a robot with a new secret")
}
