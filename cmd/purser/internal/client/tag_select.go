package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/policy"
)

// selection is an argument that names a tag, or several by a pattern.
type selection struct {
	arg, repository, pattern string
	count                    int    // tags that it selects
	seen                     string // stands for these tags, if somebody is asked about them
}

// shownTags is how many of the selected tags a question shows.
const shownTags = 10

// parseSelections parses the arguments before anything is done: if one is misspelt, nothing is.
func parseSelections(args []string) (list []selection, err error) {
	for _, arg := range args {
		repository, tag, err := splitTag(arg)
		if err != nil {
			return nil, err
		}
		list = append(list, selection{arg: arg, repository: repository, pattern: tag})
	}
	return list, nil
}

// addCount adds the flag --count, which repeats the number of selected tags.
func addCount(cmd *cobra.Command) *int {
	return cmd.Flags().Int("count", -1, "for a pattern that selects half of the tags or more: repeat `NUMBER`, how many it selects")
}

// tagsChange changes the tags of a selection, or says what it would change. `deletion` is that to which
// the tags are to belong, "" for a new one.
type tagsChange func(_ context.Context, _ api.InRepository, _ api.TagSelection, deletion string) (api.ChangedTags, error)

// preview asks what each argument selects, and returns the words for a question. It returns an error
// if an argument selects half of a repository's tags and `count` isn't their number.
func preview(cmd *cobra.Command, change tagsChange, list []selection, count int) (words string, total int, err error) {
	var parts []string
	for i := range list {
		s := &list[i]
		found, err := change(cmd.Context(), api.InRepository{Repository: s.repository}, api.TagSelection{Pattern: s.pattern, DryRun: true}, "")
		if err != nil {
			return "", 0, fmt.Errorf("%s: %w", s.arg, err)
		}
		s.count, s.seen, total = found.Selected, found.Selection, total+found.Selected
		if !strings.Contains(s.pattern, "*") {
			parts = append(parts, s.arg)
			continue
		}
		names := strings.Join(found.Tags[:min(shownTags, len(found.Tags))], ", ")
		if found.Selected > shownTags {
			names += ", …"
		}
		parts = append(parts, fmt.Sprintf("%s, which is %s (%s)", s.arg, command.Count(int64(found.Selected), "tag"), names))
		if found.Half && count != found.Selected {
			return "", 0, command.Usagef("%s selects %s, half of the tags of %s or more: %s. If that is meant, add --count %d",
				s.arg, command.Count(int64(found.Selected), "tag"), s.repository, names, found.Selected)
		}
	}
	return strings.Join(parts, "; "), total, nil
}

// change changes what the selection selects, as much as a request does at a time, and says so by
// `done`, of a number of tags.
func (s *selection) change(cmd *cobra.Command, change tagsChange, done func(tags string) string) (refused int, err error) {
	request, changed, deletion := api.TagSelection{Pattern: s.pattern, Count: &s.count, Selection: s.seen}, 0, ""
	for {
		answer, err := change(cmd.Context(), api.InRepository{Repository: s.repository}, request, deletion)
		if err != nil {
			if changed > 0 { // by the requests before
				err = errors.Join(err, s.sayUndo(cmd, deletion))
			}
			return refused, fmt.Errorf("%s: %w", s.arg, err)
		}
		deletion = answer.Deletion
		for _, r := range answer.Refused {
			refused++
			if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s:%s stays: %s\n", s.repository, r.Tag, s.reason(cmd, r.Reason)); err != nil {
				return refused, err
			}
		}
		if changed += answer.Changed; answer.Next == "" {
			break
		}
		request.After = answer.Next
		if request.Selection != "" {
			request.Selection = answer.Selection
		}
	}
	tags := s.arg
	if strings.Contains(s.pattern, "*") {
		tags = command.Count(int64(changed), "tag") + " of " + s.repository
	} else if changed == 0 {
		return refused, nil
	}
	if err := say(cmd, "%s\n", done(tags)); err != nil || changed == 0 {
		return refused, err
	}
	return refused, s.sayUndo(cmd, deletion)
}

// reason returns why a tag stays, in the words of the command. A pattern deletes no protected tag.
func (s *selection) reason(cmd *cobra.Command, text string) string {
	if strings.Contains(s.pattern, "*") {
		text = strings.ReplaceAll(text, "delete it by the management API with override_protection", "name it alone with --override-protection to delete it")
	}
	return command.NameFlags(cmd, text)
}

// sayUndo says how to restore the tags of a deletion; "": nothing was deleted.
func (s *selection) sayUndo(cmd *cobra.Command, deletion string) error {
	if deletion == "" {
		return nil
	}
	return say(cmd, "To undo this: purser tag undo %s %s\n", s.repository, deletion)
}

func tagUndoCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "undo REPOSITORY DELETION", Short: "Restore the tags of a deletion by a pattern", Args: cobra.ExactArgs(2),
		Long: "Restore the tags that \"purser tag delete\" has deleted by a pattern, as they were, as long as garbage collection hasn't deleted\n" +
			"their manifests. \"purser tag delete\" prints the DELETION; \"purser audit list\" shows it as the run of the deleted tags. It may be\n" +
			"short, if you may read the audit log. Tags that\n" +
			"were pushed again since stay as they are, and are named.",
		Example: "  purser tag undo library/app 6a1f0c2e-3b54-4c8e-9d3b-2a1f0e9d8c7b",
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			of := api.InRepository{Repository: args[0]}
			deletion, err := identifyInLog(cmd.Context(), c, "DELETION", args[1], api.LogExport{
				LogAt: api.LogAt{Repository: args[0]}, LogFilter: api.LogFilter{Kinds: []string{string(audit.DeleteTag)}},
			}, runOf)
			if err != nil {
				return err
			}
			restored, stay := 0, 0
			in := api.TagsRestoration{InRepository: of, Body: api.UndoneDeletion{Deletion: deletion}}
			for {
				answer, err := api.RestoreTags.Call(cmd.Context(), c, in)
				if err != nil {
					return err
				}
				for _, r := range answer.Refused {
					stay++
					if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s:%s stays as it is: %s\n", args[0], r.Tag, r.Reason); err != nil {
						return err
					}
				}
				if restored += answer.Restored; answer.Next == "" {
					break
				}
				in.Body.Cursor = answer.Next
			}
			if err := say(cmd, "Restored %s of %s.\n", command.Count(int64(restored), "tag"), args[0]); err != nil {
				return err
			}
			if stay > 0 {
				return command.Refuse(command.Count(int64(stay), "tag") + " stayed as before")
			}
			return nil
		}),
	}
}

// changeAll asks, and then changes all selections.
func changeAll(cmd *cobra.Command, change tagsChange, list []selection, count int, yes bool, question string, done func(tags string) string) error {
	words, total, err := preview(cmd, change, list, count)
	if err != nil {
		return err
	}
	if total == 0 {
		return say(cmd, "No tag matches.\n")
	}
	if err := command.Confirm(cmd, yes, question, words); err != nil {
		return err
	}
	stay := 0
	for i := range list {
		if yes { // nobody has seen the tags
			list[i].seen = ""
		}
		refused, err := list[i].change(cmd, change, done)
		if stay += refused; err != nil {
			return err
		}
	}
	if stay > 0 {
		return command.Refuse(command.Count(int64(stay), "tag") + " stayed")
	}
	return nil
}

func tagExpireCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "expire REPOSITORY:TAG...", Short: "Have tags deleted at a date, or never", Args: cobra.MinimumNArgs(1),
		Long: "Have tags deleted at a date, or take their dates away. In the name of a tag, * stands for any characters; quote it, so that\n" +
			"the shell leaves it alone. A push of a tag takes its date away, unless a label of the image gives it another.",
		Example: "  purser tag expire 'library/app:pr-7-*' --in 2d --yes\n  purser tag expire library/app:v1 --at 2030-01-02T15:04:05Z\n  purser tag expire library/app:v1 --never",
	}
	yes, count := command.AddYes(cmd), addCount(cmd)
	var in, at string
	textFlag(cmd, &in, "in", "", "delete them after `AGE`, such as 2d: by the clock of the registry's database", checkAge)
	cmd.Flags().StringVar(&at, "at", "", "delete them at `TIME`, such as 2030-01-02T15:04:05Z")
	never := cmd.Flags().Bool("never", false, "take their dates away")
	cmd.MarkFlagsOneRequired("in", "at", "never")
	cmd.MarkFlagsMutuallyExclusive("in", "at", "never")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, err := parseSelections(args)
		if err != nil {
			return err
		}
		when := "Never"
		switch {
		case in != "":
			when = "In " + in
		case at != "":
			when = "At " + at
		}
		expire := func(ctx context.Context, of api.InRepository, selection api.TagSelection, _ string) (api.ChangedTags, error) {
			body := api.SelectedExpiration{TagSelection: selection, In: in, At: at, Never: *never}
			return api.ExpireTags.Call(ctx, c, api.TagsExpiration{InRepository: of, Body: body})
		}
		if age, err := policy.ParseAge(in); err == nil && age.Duration() < time.Hour {
			when += ", which is " + age.Duration().String() + " (m is minutes)"
		} else if !strings.Contains(strings.Join(args, ""), "*") {
			*yes = true // it names tags, and a later date takes it back
		}
		done := func(tags string) string {
			if *never {
				return tags + ": without a date of deletion."
			}
			return when + ", " + tags + " will be deleted."
		}
		return changeAll(cmd, expire, list, *count, *yes, when+": delete %s?", done)
	})
	return cmd
}
