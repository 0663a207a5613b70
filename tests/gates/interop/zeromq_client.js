// A DEALER and a REQ of zeromq.js that each ask three times: node zeromq_client.js MODULE ENDPOINT
const zmq = require(process.argv[2]);

async function ask(kind, socket, envelope) {
  socket.connect(process.argv[3]);
  for (let number = 0; number < 3; number++) {
    await socket.send([...envelope, "Res01", "GS", `id-${number}`]);
    const answer = (await socket.receive()).map(String).slice(envelope.length, envelope.length + 3);
    if (answer.join() !== `Res01,id-${number},SG`) throw new Error(`${kind}: ${answer.join()}`);
  }
  console.log(`${kind} ok`);
  socket.close();
}

async function main() {
  const options = { linger: 0, receiveTimeout: 20000, heartbeatInterval: 50, heartbeatTimeToLive: 2000 };
  await ask("DEALER", new zmq.Dealer(options), [""]);
  await ask("REQ", new zmq.Request(options), []);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
