# A small HTTP server on a Unix socket: answers GET /N with work(N).
import http.server, os, socketserver

def serve(path, work):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            said = b"ok" if self.path == "/ready" else work(int(self.path[1:])).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    socketserver.UnixStreamServer(path, Handler).serve_forever()
