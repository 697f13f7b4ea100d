package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is one tab of a browser without a window. It collects what a person would call a defect
// of a page: errors of the console, among them refusals by the content policy, and dialogues that
// nobody asked for.
type browser struct {
	t        *testing.T
	ctx      context.Context
	axe      string
	mu       sync.Mutex
	problems []string
	status   int64 // of the last document
	accept   bool  // answer the next question of a page with yes
}

// chromium returns the command that loads `url` in a browser without a window. For this
// browser, every name below example points to 127.0.0.1.
func chromium(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			dir := newDir(t)
			cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
				"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(dir, "profile"),
				"--host-resolver-rules=MAP *.example 127.0.0.1", url)
			cmd.Env = childEnv("HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir)
			cmd.SysProcAttr = endsWithParent()
			return cmd
		}
	}
	lacking(t, "chromium isn't installed (tools/packages installs it)")
	return nil
}

// newBrowser starts a browser, which ends with the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	cmd := chromium(t, "about:blank")
	b := &browser{t: t, axe: axeSource(t)}
	profile := newDir(t)
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(cmd.Path), chromedp.NoSandbox, chromedp.UserDataDir(filepath.Join(profile, "profile")),
		chromedp.Env("HOME="+profile, "XDG_CONFIG_HOME="+profile, "XDG_CACHE_HOME="+profile), chromedp.WSURLReadTimeout(2*time.Minute),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true))...)
	ctx, cancelTab := chromedp.NewContext(allocator)
	b.ctx = ctx
	// chromedp.Cancel waits until the browser has ended, so that its profile can be removed.
	t.Cleanup(func() { chromedp.Cancel(ctx); cancelTab(); cancel() }) //nolint:errcheck // the browser is gone in any case
	err := chromedp.Listen(ctx, b.hear)
	if err == nil {
		_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	}
	if err == nil {
		_, err = chromedp.Call(ctx, log.Enable, struct{}{})
	}
	if err != nil {
		t.Fatalf("starting the browser: %v", err)
	}
	return b
}

func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		b.problems = append(b.problems, "exception: "+text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning || e.Type == runtime.ConsoleAPICalledTypeAssert {
			text, _ := json.Marshal(e.Args) //nolint:errchkjson // it is shown only
			b.problems = append(b.problems, "console: "+string(text))
		}
	case *log.EventEntryAdded:
		// The browser logs the status of a page that doesn't exist, which some tests ask for.
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			b.problems = append(b.problems, "log: "+e.Entry.Text)
		}
	case *network.EventResponseReceived:
		if e.Type == network.ResourceTypeDocument {
			b.status = e.Response.Status
		}
	case *page.EventJavascriptDialogOpening:
		accept := b.accept
		if b.accept = false; !accept {
			b.problems = append(b.problems, "dialogue: "+e.Message)
		}
		go chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: accept}) //nolint:errcheck // the page waits otherwise, and the test fails
	}
}

// do runs actions in the tab.
func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%s at %s: %v", what, b.location(), err)
	}
}

// location returns the address of the page, for messages.
func (b *browser) location() string {
	at, err := chromedp.Run(b.ctx, chromedp.Location())
	if err != nil {
		return err.Error()
	}
	return at
}

// look sets the size of the window, and whether the person prefers dark pages.
func (b *browser) look(width, height int64, scheme string) {
	b.t.Helper()
	b.do("setting the size", chromedp.EmulateViewport(width, height))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// open loads a page and returns the status of its answer.
func (b *browser) open(url string) int64 {
	b.t.Helper()
	b.do("opening "+url, chromedp.Navigate(url))
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// text returns the text that the page shows.
func (b *browser) text() string {
	b.t.Helper()
	return eval[string](b, "document.body.innerText")
}

// eval runs JavaScript in the page and returns its result, of a promise too.
func eval[T any](b *browser, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("running %.200s at %s: %v", script, b.location(), err)
	}
	return out
}

// wait waits until a JavaScript expression is true. The page may change meanwhile.
func (b *browser) wait(what, expression string) {
	b.t.Helper()
	eventually(b.t, 3*time.Minute, func() error {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`Boolean(`+expression+`)`))
		if err == nil && !ok {
			err = fmt.Errorf("never: %s, at %s", what, b.location())
		}
		return err
	})
}

// checkPage fails the test if the page has shown a problem since the last call, violates a rule of
// accessibility, or is wider than the window.
func (b *browser) checkPage(name string) {
	b.t.Helper()
	violations := eval[[]string](b, b.axe+`;axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v =>
		v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + " (" + n.any.concat(n.all, n.none).map(c => c.message).join("; ").slice(0, 200) + ")").join(" | ")))`)
	for _, v := range violations {
		b.t.Errorf("%s: accessibility: %s", name, v)
	}
	if over := eval[int](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); over > 0 {
		b.t.Errorf("%s: the page is %d px wider than the window", name, over)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("%s: %s", name, p)
	}
	b.problems = nil
}

// axe-core checks the accessibility of pages. It is used by tests only, and isn't a part of this
// repository: the test downloads the package once from the npm registry.
const (
	axeVersion = "4.14.1"
	axeSum     = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==" // dist.integrity, sha512
)

var axeOnce = sync.OnceValues(fetchAxe)

func axeSource(t *testing.T) string {
	t.Helper()
	source, err := axeOnce()
	if err != nil {
		lacking(t, "axe-core can't be had: %v", err)
	}
	return source
}

// fetchAxe returns the text of axe-core, from the user's cache directory if it is there.
func fetchAxe() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "purser", "tools", "axe-core-"+axeVersion+".tgz")
	archive, err := os.ReadFile(path)
	if err != nil {
		if archive, err = downloadAxe(); err != nil {
			return "", err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(path+".new", archive, 0o644); err != nil {
			return "", err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return "", err
		}
	}
	if sum := sha512.Sum512(archive); base64.StdEncoding.EncodeToString(sum[:]) != axeSum {
		return "", fmt.Errorf("%s isn't version %s: its digest is another one", path, axeVersion)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return "", err
	}
	for files := tar.NewReader(unzipped); ; {
		file, err := files.Next()
		if err != nil {
			return "", fmt.Errorf("looking for axe.min.js in %s: %w", path, err)
		}
		if file.Name == "package/axe.min.js" {
			source, err := io.ReadAll(files)
			return string(source), err
		}
	}
}

func downloadAxe() ([]byte, error) {
	registry := strings.TrimSuffix(os.Getenv("npm_config_registry"), "/")
	if registry == "" {
		registry = "https://registry.npmjs.org"
	}
	client := http.Client{Timeout: 2 * time.Minute}
	res, err := client.Get(registry + "/axe-core/-/axe-core-" + axeVersion + ".tgz")
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(res.Body, 32<<20))
	err = errors.Join(err, res.Body.Close())
	if res.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("the registry answered %s", res.Status))
	}
	return content, err
}
