package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/oci"
)

func gcExplainCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain REPOSITORY@DIGEST | DIGEST",
		Short: "Tell what keeps a manifest or a blob, or when and why it will be deleted",
		Example: "  purser gc explain library/app@sha256:9f86d0818…   a manifest of library/app\n" +
			"  purser gc explain sha256:2c26b46b6…               a blob",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one thing to explain: " + explainable)
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return completeExplainable(src, cmd, args, word)
	}
	out := command.AddFormat(cmd)
	command.AddInsecure(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, digest, err := parseExplainable(args[0])
		if err != nil {
			return command.Usagef("%w", err)
		}
		return withGC(src, cmd, func(ctx context.Context, g gcAccess) error {
			if path == "" {
				e, err := g.blob(ctx, digest)
				if err != nil {
					return plainly(err)
				}
				return out.Print(cmd.OutOrStdout(), e, func(w io.Writer) error {
					return writeExplanation(w, "blob "+digest.String(), e.Sentences())
				})
			}
			e, err := g.manifest(ctx, path, digest)
			if err != nil {
				return plainly(err)
			}
			return out.Print(cmd.OutOrStdout(), e, func(w io.Writer) error {
				return writeExplanation(w, "manifest "+path+"@"+digest.String(), e.Sentences())
			})
		})
	}
	return cmd
}

const explainable = "<repository>@<digest> for a manifest, or <digest> for a blob (a digest is sha256:… or sha512:…)"

// parseExplainable parses REPOSITORY@DIGEST, which names a manifest, or DIGEST alone, which
// names a blob; then `path` is "".
func parseExplainable(text string) (path string, d oci.Digest, err error) {
	path, digest, found := strings.Cut(text, "@")
	if !found {
		path, digest = "", text
	} else if err := oci.ValidateName(path); err != nil {
		return "", d, fmt.Errorf("%w; write %s", err, explainable)
	}
	if d, err = oci.ParseDigest(digest); err != nil {
		return "", d, fmt.Errorf("%w; write %s", err, explainable)
	}
	return path, d, nil
}

// plainly rewords an error of type oci.Error, which is worded for clients of the API, for
// an operator at a terminal.
func plainly(err error) error {
	e, ok := errors.AsType[*oci.Error](err)
	if !ok {
		return err
	}
	text := e.Message
	if e.Code == oci.BlobUnknown {
		text += `; if it is a manifest's digest, write <repository>@<digest>`
	}
	return command.Refuse(text)
}

func writeExplanation(w io.Writer, what string, sentences []string) error {
	_, err := fmt.Fprintf(w, "%s\n  %s\n", what, strings.Join(sentences, "\n  "))
	return err
}
