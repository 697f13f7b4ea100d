package operate

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/gc"
)

// progressText describes the progress of garbage collection, by a bar (`picture`) and by
// numbers (`text`).
func progressText(done gc.Progress) (picture, text string) {
	reviewed := done.ManifestsReviewed + done.BlobsReviewed
	return bar(reviewed, reviewed+done.Due) + " ", fmt.Sprintf("reviewed %s, %s left; deleted %s, %s; reclaimed %s", humanize.Comma(reviewed),
		humanize.Comma(done.Due), command.Count(done.ManifestsDeleted, "manifest"), command.Count(done.BlobsDeleted, "blob"), command.Size(done.Bytes))
}

// bar draws a progress bar for done of total.
func bar(done, total int64) string {
	const width = 20
	full, percent := width, int64(100)
	if total > 0 {
		full, percent = int(done*width/total), done*100/total
	}
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", width-full), percent)
}
