package cases

import (
	"strconv"
	"strings"
)

func itoa(n int) string { return strconv.Itoa(n) }

// joinLines ends every line with a newline.
func joinLines(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	return b.String()
}
