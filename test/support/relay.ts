import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { LOOPBACK } from '../../deploy/local/processes.ts';

/** A TCP way to a server that can be cut, and mended again. */
export async function startRelay(target: { readonly host: string; readonly port: number }) {
  const sockets = new Set<Socket>();
  let isCut = false;
  const server = createServer((near) => {
    if (isCut) return near.destroy();
    const far = connect(target.port, target.host);
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(one);
      one.pipe(other);
      one.on('error', () => {});
      one.once('close', () => {
        sockets.delete(one);
        other.destroy();
      });
    }
    return undefined;
  });
  server.listen(0, LOOPBACK);
  await once(server, 'listening');
  const address = server.address();
  const cut = () => {
    isCut = true;
    for (const socket of sockets) socket.destroy();
  };
  return {
    host: LOOPBACK,
    port: typeof address === 'object' ? (address?.port ?? 0) : 0,
    cut,
    mend: () => {
      isCut = false;
    },
    close() {
      cut();
      server.close();
    },
  };
}
