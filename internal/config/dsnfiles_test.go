package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFilesOfDSN: the driver would read whatever a DSN names, and a pipe for ever.
func TestFilesOfDSN(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a 'b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	quoted := func(path string) string { return "'" + strings.ReplaceAll(path, "'", `\'`) + "'" }
	for dsn, bad := range map[string]bool{
		"postgres://u:hidden@h/d?sslmode=require&sslrootcert=" + strings.ReplaceAll(pipe, " ", "%20"): true,
		"host=h sslcert=" + quoted(file) + " sslkey = " + quoted(pipe) + " password=hidden":           true,
		"host=h passfile=" + quoted(pipe):                                      true,
		"host=h application_name=" + quoted(pipe):                              false,
		"host=h sslrootcert=" + quoted(file) + " sslcert=/nowhere passfile=''": false,
		"postgres://u:hidden@h/d?sslrootcert=/nowhere":                         false,
		"host=h passfile=' ":                                                   false,
		"postgres://%zz?sslkey":                                                false,
	} {
		err := DSN(dsn).checkFiles()
		if (err != nil) != bad || bad && (!strings.Contains(err.Error(), "it is a pipe") || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	c, err := Load("", []string{"HOME=" + dir, "PURSER_DATABASE_MAIN=host=h password=hidden passfile=" + quoted(pipe)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "database.main: read "+pipe+": it is a pipe") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("Validate: %v", err)
	}
}
