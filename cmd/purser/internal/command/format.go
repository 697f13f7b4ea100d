package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// Format is a command's output format.
type Format string

const (
	Text Format = "text"
	JSON Format = "json"
	CSV  Format = "csv" // of commands with AllowCSV
)

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "FORMAT" }

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	switch Format(text) {
	case Text, JSON:
		*f = Format(text)
		return nil
	case CSV: // orCSV takes it
	}
	return errors.New("write text or json")
}

// AddFormat adds the flag --output (-o).
func AddFormat(cmd *cobra.Command) *Format {
	f := Text
	cmd.Flags().VarP(&f, "output", "o", "print `FORMAT`: text or json")
	return &f
}

// orCSV is a format that may be CSV.
type orCSV struct{ *Format }

// Set implements pflag.Value.
func (f orCSV) Set(text string) error {
	if text == string(CSV) {
		*f.Format = CSV
		return nil
	}
	if f.Format.Set(text) != nil {
		return errors.New("write text, json or csv")
	}
	return nil
}

// AllowCSV lets --output be csv too. What Print calls for text then writes both.
func AllowCSV(cmd *cobra.Command, f *Format) {
	flag := cmd.Flags().Lookup("output")
	flag.Value, flag.Usage = orCSV{f}, "print `FORMAT`: text, json or csv"
	words := cobra.FixedCompletions([]string{string(Text), string(JSON), string(CSV)}, cobra.ShellCompDirectiveNoFileComp)
	cmd.RegisterFlagCompletionFunc(flag.Name, words) //nolint:errcheck // the flag is there
}

// Print writes the value `v` to `w` as JSON if the format is JSON. Otherwise it calls
// `text`, which writes it as text.
func (f Format) Print(w io.Writer, v any, text func(w io.Writer) error) error {
	if f != JSON {
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

// Count formats `n` with the noun `one`, in the plural unless n is 1.
func Count(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(n) + " " + one + "s"
}

// Size formats bytes with a binary unit.
func Size(bytes int64) string { return humanize.IBytes(uint64(max(0, bytes))) }

// Printable returns text of others, such as a tag's name, without the control characters that would
// change a terminal's screen.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '�'
		}
		return r
	}, text)
}
