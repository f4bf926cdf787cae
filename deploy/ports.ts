import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { OperatorProblem } from '../db/connection/errors.ts';

// Chooses ports on this machine.

export const LOOPBACK = '127.0.0.1';

/**
 * Returns a loopback port that was free a moment ago, for servers that cannot choose a port
 * themselves. Another program may take the port before the server does, so callers must be able to
 * try another port.
 * @param port the port that has to be free; any free port by default
 * @param server the server's name, for the error message
 * @param option the option that chooses another port, for the error message
 * @throws {OperatorProblem} if the port is taken
 */
export async function freePort(
  port = 0,
  server = 'a server',
  option?: string,
): Promise<number> {
  const listening = await listenOn(createServer(), port, server, option);
  await listening.close();
  return listening.port;
}

/**
 * Makes a server listen on loopback. Closing it also closes open connections.
 * @param port 0 for any free port
 * @param name the server's name, for the error message
 * @param option the option that chooses another port, for the error message
 * @throws {OperatorProblem} if the port is taken
 */
export async function listenOn(
  server: Pick<Server, 'listen' | 'address' | 'close' | 'closeAllConnections'> &
    NodeJS.EventEmitter,
  port: number,
  name: string,
  option?: string,
) {
  server.listen(port, LOOPBACK);
  await once(server, 'listening').catch((error: NodeJS.ErrnoException) => {
    if (!['EADDRINUSE', 'EACCES'].includes(error.code ?? '')) throw error;
    throw portTaken(port, name, option);
  });
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

/** Returns the error that a port is taken. */
export function portTaken(port: number, name: string, option?: string): OperatorProblem {
  const other = option ? `choose another port with ${option}` : 'choose another port';
  return new OperatorProblem(
    `Port ${port} on ${LOOPBACK}, which ${name} needs, is in use: stop the program that uses it, or ${other}.`,
  );
}
