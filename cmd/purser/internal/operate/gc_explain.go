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
		path, tag, digest, err := parseExplainable(args[0])
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
			if tag != "" {
				if digest, err = g.tagged(ctx, path, tag); err != nil {
					return plainly(err)
				}
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

const explainable = "<repository>@<digest> or <repository>:<tag> for a manifest, or <digest> for a blob (a digest is sha256:… or sha512:…)"

// parseExplainable parses REPOSITORY@DIGEST or REPOSITORY:TAG, which name a manifest, or DIGEST alone,
// which names a blob; then `path` is "".
func parseExplainable(text string) (path, tag string, d oci.Digest, err error) {
	path, digest, found := strings.Cut(text, "@")
	if !found {
		path, digest = "", text
	} else if err := oci.ValidateName(path); err != nil {
		return "", "", d, fmt.Errorf("%w; write %s", err, explainable)
	}
	d, err = oci.ParseDigest(digest)
	if colon := strings.LastIndex(text, ":"); err != nil && !found && colon >= 0 && !beginsDigest(text[:colon]) {
		path, tag = text[:colon], text[colon+1:]
		if err = oci.ValidateName(path); err == nil {
			err = oci.ValidateTag(tag)
		}
	}
	if err != nil {
		return "", "", d, fmt.Errorf("%w; write %s", err, explainable)
	}
	return path, tag, d, nil
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
