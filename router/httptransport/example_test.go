package httptransport_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

// engine stands for an inference server.
func engine(name string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"model":"m","choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2},"engine":%q}`, name)
	}))
}

// A reverse proxy becomes a gateway: the transport chooses the engine, the proxy does the rest.
func ExampleTransport() {
	a, b := engine("a"), engine("b")
	defer a.Close()
	defer b.Close()

	pool, err := router.New(router.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = pool.SetEndpoints([]router.Endpoint{{ID: "a", Address: a.URL, Models: []string{"m"}}, {ID: "b", Address: b.URL, Models: []string{"m"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	gateway := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:      func(*httputil.ProxyRequest) {},
		Transport:    &httptransport.Transport{Pool: pool, Describe: httptransport.OpenAI{}.Describe},
		ErrorHandler: httptransport.ErrorHandler,
	})
	defer gateway.Close()

	for _, model := range []string{"m", "other"} {
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}]}`, model)
		resp, err := http.Post(gateway.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			fmt.Println(err)
			return
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		fmt.Println(resp.StatusCode, bytes.Contains(text, []byte("model_not_found")))
	}
	fmt.Println("open:", pool.Stats().OpenLeases)
	// Output:
	// 200 false
	// 404 true
	// open: 0
}

// The describer reads an OpenAI body and leaves it as it was.
func ExampleOpenAI() {
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m","prompt":[1,2,3],"max_tokens":5}`))
	req, err := httptransport.OpenAI{}.Describe(r)
	fmt.Println(req.Model, req.PromptTokens, req.MaxOutputTokens, err)
	// Output: m 3 5 <nil>
}
