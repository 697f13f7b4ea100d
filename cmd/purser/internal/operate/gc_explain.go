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
		Use:   "explain REPOSITORY@DIGEST | REPOSITORY:TAG | DIGEST",
		Short: "Tell what keeps a manifest or a blob, or when and why it will be deleted",
		Example: "  purser gc explain library/app@sha256:9f86d0818…   a manifest of library/app\n" +
			"  purser gc explain library/app:v1                   the manifest of a tag\n" +
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
		path, tag, written, err := parseExplainable(args[0])
		if err != nil {
			return command.Usagef("%w", err)
		}
		return withGC(src, cmd, func(ctx context.Context, g gcAccess) error {
			if path == "" {
				digest, err := oci.ParseDigest(written)
				if err != nil {
					return err
				}
				e, err := g.blob(ctx, digest)
				if err != nil {
					return plainly(err)
				}
				return out.Print(cmd.OutOrStdout(), e, func(w io.Writer) error {
					return writeExplanation(w, "blob "+digest.String(), e.Sentences())
				})
			}
			digest, err := g.whole(ctx, path, tag, written)
			if err != nil {
				return plainly(err)
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

const explainable = "<repository>@<digest> or <repository>:<tag> for a manifest, or <digest> for a blob (a digest is sha256:… or sha512:…; that of a manifest may be short)"

// parseExplainable parses REPOSITORY@DIGEST, where the digest may be short, or REPOSITORY:TAG, which name
// a manifest, or DIGEST alone, which names a blob; then `path` is "".
func parseExplainable(text string) (path, tag, digest string, err error) {
	path, digest = command.SplitDigest(text)
	if path != "" || strings.HasPrefix(text, "@") {
		if err = oci.ValidateName(path); err == nil {
			_, err = oci.ParseShortDigest(digest)
		}
	} else if _, err = oci.ParseDigest(digest); err != nil {
		if colon := strings.LastIndex(text, ":"); colon >= 0 && !beginsDigest(text[:colon]) {
			path, tag, digest = text[:colon], text[colon+1:], ""
			if err = oci.ValidateName(path); err == nil {
				err = oci.ValidateTag(tag)
			}
		} else if _, short := oci.ParseShortDigest(digest); short == nil {
			err = fmt.Errorf("%w: a short digest needs its repository", err)
		}
	}
	if err != nil {
		return "", "", "", fmt.Errorf("%w; write %s", err, explainable)
	}
	return path, tag, digest, nil
}

// beginsDigest says whether a text is the name of an algorithm, so that what follows is meant to be a
// digest: perhaps a shortened one, and no tag of a repository of this name.
func beginsDigest(text string) bool {
	return text == oci.SHA256.String() || text == oci.SHA512.String()
}

// plainly rewords an error of type oci.Error, which is worded for clients of the API, for
// an operator at a terminal.
func plainly(err error) error {
	e, ok := errors.AsType[*oci.Error](err)
	if !ok {
		return err
	}
	return command.Refuse(e.Message)
}

func writeExplanation(w io.Writer, what string, sentences []string) error {
	_, err := fmt.Fprintf(w, "%s\n  %s\n", what, strings.Join(sentences, "\n  "))
	return err
}
