package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/isobar-go/isobar/examples/internal/embedded"
)

// An engine at a hundred times real time answers one streamed request.
func ExampleStart() {
	engine, err := embedded.Start(embedded.Config{Name: "a", Model: "demo", TimeScale: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Kill()

	body := `{"model":"demo","messages":[{"role":"user","content":"hello"}],"max_tokens":3,"stream":true}`
	resp, err := http.Post(engine.URL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		fmt.Println(err)
		return
	}
	chunks := 0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"content":" `) {
			chunks++
		}
	}
	_ = resp.Body.Close()
	fmt.Println(resp.Header.Get("X-Engine-Name"), "sent", chunks, "tokens")
	fmt.Println(engine.Shutdown(context.Background()))
	// Output:
	// a sent 3 tokens
	// <nil>
}
