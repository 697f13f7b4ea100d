package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// format is a command's output format.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "FORMAT" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	switch format(text) {
	case formatText, formatJSON:
		*f = format(text)
		return nil
	}
	return errors.New("write text or json")
}

// addFormat adds the flag --output (-o).
func addFormat(cmd *cobra.Command) *format {
	f := formatText
	cmd.Flags().VarP(&f, "output", "o", "print `FORMAT`: text or json")
	return &f
}

// print writes v as JSON, or calls text.
func (f format) print(w io.Writer, v any, text func(w io.Writer) error) error {
	if f == formatText {
		return text(w)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}

// count formats a number with a noun in singular or plural.
func count(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(n) + " " + one + "s"
}

// size formats bytes with a binary unit.
func size(bytes int64) string { return humanize.IBytes(uint64(max(0, bytes))) }
