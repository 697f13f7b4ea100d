// Package docs has the documentation's pages as files, so that a registry can show them where
// there is no network.
package docs

import "embed"

// Pages has the pages, in Markdown. README.md is their table of contents.
//
//go:embed *.md
var Pages embed.FS
