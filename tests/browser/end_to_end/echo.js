// A dev server without dependencies: `node echo.js PORT` serves a page whose WebSocket gets back what it says.
const http = require("node:http");
const { createHash } = require("node:crypto");

const PAGE = `<!doctype html><title>echo</title><p id="said"></p><script>
  const socket = new WebSocket("ws://" + location.host + "/echo");
  socket.onopen = () => socket.send("hello from the page");
  socket.onmessage = (event) => { document.getElementById("said").textContent = event.data; };
</script>`;

const server = http.createServer((_request, answer) => answer.writeHead(200, { "Content-Type": "text/html" }).end(PAGE));

server.on("upgrade", (request, socket) => {
  const key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  const accept = createHash("sha1").update(key).digest("base64");
  const lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"];
  socket.write([...lines, `Sec-WebSocket-Accept: ${accept}`, "", ""].join("\r\n"));
  socket.on("data", (frame) => {
    if ((frame[0] & 15) !== 1) return socket.end();
    const mask = frame.subarray(2, 6);
    const text = frame.subarray(6).map((byte, index) => byte ^ mask[index % 4]);
    return socket.write(Buffer.concat([Buffer.from([0x81, text.length]), text]));
  });
});

server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("it listens"));
