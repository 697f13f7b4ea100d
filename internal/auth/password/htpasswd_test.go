package password

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var hash2y = "$2y" + openwallBcrypt[3:] // of U*U

func TestParseFile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		want map[string]string
	}{
		"empty":           {"", map[string]string{}},
		"one":             {"ann:" + hash2y + "\n", map[string]string{"ann": hash2y}},
		"no last newline": {"ann:" + hash2y, map[string]string{"ann": hash2y}},
		"CRLF":            {"ann:" + hash2y + "\r\n\r\nbob:" + openwallBcrypt + "\r\n", map[string]string{"ann": hash2y, "bob": openwallBcrypt}},
		"comments":        {"# people\n\n  \n\t# ann:x\nann:" + hash2y + "  \n", map[string]string{"ann": hash2y}},
		"mark of UTF-8":   {"\ufeffann:" + hash2y, map[string]string{"ann": hash2y}},
		"upper case":      {"Ann.Lee:" + hash2y, map[string]string{"ann.lee": hash2y}},
		"mail address":    {"ann.lee@example.com:" + hash2y, map[string]string{"ann.lee@example.com": hash2y}},
	} {
		if got, wrong := parseFile(tt.text); wrong != nil || !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v", name, got, wrong)
		}
	}
}

func TestParseFileNamesTheWrongLine(t *testing.T) {
	t.Parallel()
	good := "# people\nann:" + hash2y + "\n"
	for name, tt := range map[string]struct{ line, want string }{
		"no colon":         {"bob", "line 3 has no colon"},
		"Kelvin":           {"\u212aim:" + hash2y, "line 3 doesn't begin with the name"},
		"twice by case":    {"ANN:" + openwallBcrypt, "line 3 has the account ann, which line 2 has too"},
		"no name":          {":" + hash2y, "line 3 doesn't begin with the name"},
		"long name":        {strings.Repeat("b", 129) + ":" + hash2y, "line 3 doesn't begin with the name"},
		"robot":            {"acme+ci:" + hash2y, "line 3 doesn't begin with the name"},
		"space":            {"bob :" + hash2y, "line 3 doesn't begin with the name"},
		"twice":            {"ann:" + openwallBcrypt, "line 3 has the account ann, which line 2 has too"},
		"MD5":              {"bob:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/", "line 3, account bob: the password is hashed with MD5; only bcrypt is safe enough: set the password again with htpasswd -B"},
		"crypt's MD5":      {"bob:$1$r31.....$HqJZimcKQFAMYayBlzkrA/", "MD5"},
		"SHA-1":            {"bob:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "SHA-1"},
		"SHA-256":          {"bob:$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", "SHA-2"},
		"SHA-512":          {"bob:$6$saltstring$5B8vYYiY", "SHA-2"},
		"crypt":            {"bob:rl0uE7hGjSbJI", "hashed with crypt, or not at all"},
		"plain":            {"bob:hunter2hunter2", "hashed with crypt, or not at all"},
		"argon2id":         {"bob:" + referenceArgon2, "only bcrypt"},
		"2x":               {"bob:$2x" + openwallBcrypt[3:], "damaged, or of a kind"},
		"cut":              {"bob:" + openwallBcrypt[:50], "damaged, or of a kind"},
		"one field more":   {"bob:" + openwallBcrypt + ":x", "damaged, or of a kind"},
		"endless":          {"bob:$2y$31" + openwallBcrypt[6:], "the cost of the bcrypt hash is 31"},
		"cost of nothing":  {"bob:$2y$00" + openwallBcrypt[6:], "damaged, or of a kind"},
		"control in  name": {"b\x00b:" + openwallBcrypt, "line 3 doesn't begin with the name"},
	} {
		hashes, wrong := parseFile(good + tt.line + "\n")
		if len(wrong) != 1 || !strings.Contains(wrong[0].Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", name, wrong, tt.want)
			continue
		}
		err := wrong[0]
		if twice := strings.HasPrefix(name, "twice"); twice != (hashes["ann"] == "") || len(hashes) > 1 {
			t.Errorf("%s: the accounts are %v", name, hashes)
		}
		if _, hash, _ := strings.Cut(tt.line, ":"); len(hash) > 3 && strings.Contains(err.Error(), hash[3:]) {
			t.Errorf("%s: the error has the hash: %v", name, err)
		}
	}
}

// FuzzParseFile checks that each hash which the parser accepts can be checked, and that errors
// have nothing of the line but the account's name.
func FuzzParseFile(f *testing.F) {
	f.Add("ann:" + hash2y + "\r\n# x\n\nbob:" + openwallBcrypt)
	f.Add("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=")
	f.Add("\ufeff:\x00:\n")
	f.Add(strings.Repeat("0", 21) + ":" + strings.Repeat("0", 21))  // the hash is the name
	f.Add(strings.Repeat("0", 20) + ": " + strings.Repeat("0", 20)) // and so it is with a space
	f.Fuzz(func(t *testing.T, text string) {
		hashes, wrong := parseFile(text)
		for _, err := range wrong {
			allowed := "line, account doesn't begin with the name of an account"
			for line := range strings.Lines(text) {
				name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
				name = lowerASCII(name)
				allowed += "\nline 1, account " + name + ": "
			}
			for line := range strings.Lines(text) {
				_, hash, ok := strings.Cut(strings.TrimSpace(line), ":")
				if ok && len(hash) > 20 && !strings.Contains(allowed, hash) && strings.Contains(err.Error(), hash) {
					t.Errorf("the error has a part of the line %q: %v", line, err)
				}
			}
		}
		for name, hash := range hashes {
			cost, ok := bcryptCost(hash)
			if !nameForm.MatchString(name) || !ok || cost < 4 || cost > mostCost {
				t.Errorf("accepted %q with the hash %q", name, hash)
			}
			if cost > 4 {
				continue // slow
			}
			if _, err := compare("password", hash); err != nil {
				t.Errorf("the hash %q was accepted and can't be checked: %v", hash, err)
			}
		}
	})
}

// rewrite replaces a file and makes its last change an hour old.
func rewrite(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
	hourAgo := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(path, hourAgo, hourAgo))
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	if _, err := OpenFile(path, FileOptions{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	rewrite(t, path, "ann:plain\n")
	if _, err := OpenFile(path, FileOptions{}); err == nil || !strings.Contains(err.Error(), "line 1") || !strings.Contains(err.Error(), path) {
		t.Errorf("a wrong file: %v", err)
	}
	rewrite(t, path, "ann:"+hash2y+"\n")
	f, err := OpenFile(path, FileOptions{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	expect := func(want map[string]string) {
		t.Helper()
		for _, name := range []string{"ann", "bob", ""} {
			if hash, ok := f.Lookup(name); hash != want[name] || ok != (want[name] != "") {
				t.Errorf("Lookup(%q) = %q, %v", name, hash, ok)
			}
		}
		if f.Len() != len(want) {
			t.Errorf("%d accounts, want %d", f.Len(), len(want))
		}
	}
	expect(map[string]string{"ann": hash2y})

	// An equal size and time of change don't hide a change.
	rewrite(t, path, "bob:"+hash2y+"\n")
	must(t, f.reload(t.Context(), fileRest))
	expect(map[string]string{"bob": hash2y})

	// A file that is being written isn't read yet.
	must(t, os.WriteFile(path, nil, 0o600))
	soon := time.Now().Add(-fileRest / 10)
	must(t, os.Chtimes(path, soon, soon))
	must(t, f.reload(t.Context(), time.Hour))
	expect(map[string]string{"bob": hash2y})

	rewrite(t, path, "ann:"+hash2y+"\nbob:hunter2\n")
	if err := f.reload(t.Context(), fileRest); err == nil || !strings.Contains(err.Error(), "line 2, account bob") {
		t.Errorf("a wrong line: %v", err)
	}
	expect(map[string]string{"bob": hash2y})
	must(t, os.Remove(path))
	if err := f.reload(t.Context(), fileRest); err == nil {
		t.Error("a missing file is no error")
	}
	expect(map[string]string{"bob": hash2y})

	rewrite(t, path, "")
	must(t, f.reload(t.Context(), fileRest))
	expect(nil)
	rewrite(t, path, strings.Repeat("#\n", fileMost/2)+"#")
	if err := f.reload(t.Context(), fileRest); err == nil || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("a huge file: %v", err)
	}
	// Nobody writes to a pipe, so a reader of it would wait for ever.
	must(t, os.Remove(path))
	must(t, syscall.Mkfifo(path, 0o600))
	if err := f.reload(t.Context(), fileRest); err == nil || !strings.Contains(err.Error(), "a pipe") {
		t.Errorf("a pipe: %v", err)
	}
}

// Some lines are wrong when the file is first read. The others' accounts must be able to log in,
// and the log must name the wrong lines without their hashes, once.
func TestFileFirstReadWithWrongLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	rewrite(t, path, "Ann:"+hash2y+"\nbob:hunter2hunter2\nnobody\neve:"+hash2y+"\nEve:"+openwallBcrypt+"\n")
	var log bytes.Buffer
	f, err := OpenFile(path, FileOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	if hash, ok := f.Lookup("ann"); !ok || hash != hash2y || f.Len() != 1 {
		t.Errorf("ann has %q, of %d accounts", hash, f.Len())
	}
	for _, want := range []string{"line 2, account bob", "line 3 has no colon", "line 5 has the account eve, which line 4 has too"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log doesn't say %q once:\n%s", want, &log)
		}
	}
	if strings.Contains(log.String(), "hunter2") || strings.Contains(log.String(), openwallBcrypt) {
		t.Errorf("the log has a password or a hash:\n%s", &log)
	}
	before := log.Len()
	must(t, f.reload(t.Context(), fileRest))
	if log.Len() != before {
		t.Error("an unchanged file is logged again")
	}
}

// line passes on the lines that a logger writes.
type line chan string

func (l line) Write(b []byte) (int, error) {
	l <- string(bytes.Clone(b))
	return len(b), nil
}

// Run reads the file at its start and then every few seconds; a wrong line is logged without
// the hash.
func TestFileRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	rewrite(t, path, "ann:"+hash2y+"\n")
	logged := make(line, 100)
	f, err := OpenFile(path, FileOptions{Log: slog.New(slog.NewTextHandler(logged, nil))})
	must(t, err)
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		return func() {
			cancel()
			must(t, <-done)
		}
	}
	rewrite(t, path, "ann:"+hash2y+"\nbob:"+hash2y+"\n")
	stop := start()
	if got := <-logged; !strings.Contains(got, "the htpasswd file was changed") || !strings.Contains(got, "accounts=2") {
		t.Errorf("logged %s", got)
	}
	stop()
	rewrite(t, path, "ann:hunter2\n")
	stop = start()
	if got := <-logged; !strings.Contains(got, "line 1, account ann") || !strings.Contains(got, "stay in use") || strings.Contains(got, "hunter2") {
		t.Errorf("logged %s", got)
	}
	stop()
	if f.Len() != 2 {
		t.Errorf("%d accounts, want the 2 of before", f.Len())
	}
}

// TestDecoys: what a caller has computed and the decoys take together as long as the costliest hash of
// the file.
func TestDecoys(t *testing.T) {
	t.Parallel()
	open := func(lines string) *File {
		path := filepath.Join(t.TempDir(), "htpasswd")
		if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := OpenFile(path, FileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	line := func(name, cost string) string { return name + ":$2y$" + cost + openwallBcrypt[6:] + "\n" }
	if got := open("# nobody\n").Decoys(0); len(got) > 0 {
		t.Errorf("without accounts: %q", got)
	}
	f := open(line("a", "05") + line("b", "04") + line("c", "04") + line("d", "10"))
	for done, want := range map[int]int{0: 1 << 10, 4: 1<<10 - 1<<4, 5: 1<<10 - 1<<5, 10: 0, 12: 0} {
		steps := 0
		for _, hash := range f.Decoys(done) {
			cost, ok := bcryptCost(hash)
			if !ok {
				t.Errorf("%q is no hash", hash)
			}
			steps += 1 << cost
		}
		if steps != want {
			t.Errorf("after a hash of the cost %d there are %d steps, want %d", done, steps, want)
		}
	}
	if ok, err := compare("U*U", f.Decoys(4)[0]); ok || err != nil {
		t.Errorf("checking against a decoy: %v, %v, want false", ok, err)
	}
	if f.Decoys(0)[0] == open(line("d", "10")).Decoys(0)[0] {
		t.Error("two decoys are equal")
	}
}
