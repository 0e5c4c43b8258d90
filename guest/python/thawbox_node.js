// SPDX-License-Identifier: Apache-2.0
// Cells in JavaScript and TypeScript, for thawbox_languages.py: node thawbox_node.js ANSWER_FD REQUEST_FD.
// A request is a line of JSON {"code", "env", "typescript", "begin"}, its answer one of {"text"}, {"error"} or {}. All cells
// share the global scope. Before the freeze no request has "begin", the folder of a sandbox whose process this becomes. Node's own REPL evaluates those with await outside of a function.
'use strict';

const childProcess = require('child_process');
const crypto = require('crypto');
const fs = require('fs');
const net = require('net');
const readline = require('readline');
const repl = require('repl');
const { PassThrough } = require('stream');
const util = require('util');
const vm = require('vm');

const [answerFd, requestFd] = process.argv.slice(2).map(Number);
const ESBUILD = { loader: 'ts', target: 'node18', tsconfigRaw: { compilerOptions: { preserveValueImports: true } } };
const OURS = /[ (]node:|thawbox_node\.js|at new Promise \(<anonymous>\)/; // frames that are not the cell's

const server = repl.start({
  prompt: '', input: new PassThrough(), output: process.stderr, terminal: false, useGlobal: true,
});
let nr = 0;
let running = null; // reject() of the cell that runs
let isInRepl = false; // which tells what a cell has thrown as it does what a timer has

process.argv.splice(1);
process.on('SIGINT', () => running && running(interrupted()));
server._domain.removeAllListeners('error'); // the REPL would print it, and never call back
server._domain.on('error', (error) => (isInRepl ? running(error) : complain(error)));
process.on('uncaughtException', complain); // of a timer, say
process.on('unhandledRejection', complain);

function complain(error) {
  process.stderr.write(`Uncaught ${describe(error).traceback}\n`);
}

function asError(name, value) {
  return Object.assign(new Error(value), { name, stack: `${name}: ${value}` });
}

function interrupted() {
  return asError('KeyboardInterrupt', 'the cell was interrupted');
}

// esbuild's own module starts its process once: not in our group, which an interrupt goes to, and without the ping of each
// second, which would keep the sandbox awake.
function transform(code) {
  const { spawn } = childProcess;
  childProcess.spawn = (command, args, options) => spawn(command, args.filter((arg) => arg !== '--ping'),
    { ...options, detached: true, env: { ...process.env, GODEBUG: 'cpu.avx=off,cpu.avx2=off' } });
  try {
    return require('esbuild').transform(code, ESBUILD);
  } finally {
    childProcess.spawn = spawn;
  }
}

// The types are cut off; names that are not used stay, as a later cell may use them.
async function withoutTypes(code) {
  try {
    return (await transform(code)).code;
  } catch (error) {
    const told = error.errors?.map(({ text, location }) => (location ? `${location.line}:${location.column}: ${text}` : text));
    throw told ? asError('SyntaxError', told.join('\n')) : asError('Error', `esbuild: ${error.message}`);
  }
}

// An import declaration as the dynamic import that a REPL can do.
function dynamic(node) {
  const source = JSON.stringify(node.source.value);
  const names = [];
  let all = '';
  for (const s of node.specifiers) {
    if (s.type === 'ImportNamespaceSpecifier') all = s.local.name;
    else if (s.type === 'ImportDefaultSpecifier') names.push(`default: ${s.local.name}`);
    else names.push(`${JSON.stringify(s.imported.name ?? s.imported.value)}: ${s.local.name}`);
  }
  const first = all ? `var ${all} = await import(${source});` : '';
  if (!names.length) return first || `await import(${source});`;
  return `${first}var {${names.join(', ')}} = await import(${source});`;
}

// What a REPL cannot do: import declarations, and names that an earlier cell has declared.
function asVar(node, text) {
  if (node.type === 'ImportDeclaration') return dynamic(node);
  if (node.type === 'ClassDeclaration') return `var ${node.id.name} = ${text}`;
  if (node.type === 'VariableDeclaration') return `var${text.slice(node.kind.length)}`;
  return text;
}

function forRepl(code) {
  if (!/\b(import|let|const|class)\b/.test(code)) return code;
  const acorn = require('acorn');
  let tree;
  try {
    tree = acorn.parse(code, { sourceType: 'module', ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowHashBang: true });
  } catch {
    return code; // the REPL says what is wrong
  }
  for (const node of tree.body.reverse()) {
    code = code.slice(0, node.start) + asVar(node, code.slice(node.start, node.end)) + code.slice(node.end);
  }
  return code;
}

// A loop in it ends by SIGINT. (The REPL has an option for that, too, after which SIGINT ends the process.)
function evaluateAtOnce(code, filename) {
  let script;
  if (/^\s*\{/.test(code)) {
    try {
      script = new vm.Script(`(${code.trim()})`, { filename }); // an object, as a REPL has it
    } catch {
      // a block
    }
  }
  script ??= new vm.Script(code, { filename });
  return script.runInThisContext({ breakOnSigint: true, displayErrors: false });
}

function evaluate(code, typescript) {
  const filename = `cell-${++nr}`;
  return new Promise((resolve, reject) => {
    running = reject;
    Promise.resolve(typescript ? withoutTypes(code) : code).then((plain) => {
      if (running !== reject) return; // it was interrupted
      const cell = forRepl(plain);
      if (!/\b(await|import)\b/.test(cell)) {
        resolve(evaluateAtOnce(cell, filename)); // waits for a promise that is the value
        return;
      }
      isInRepl = true;
      server.eval(cell, server.context, filename, (error, value) => (error ? reject(error) : resolve(value)));
    }).catch(reject);
  });
}

function describe(error) {
  if (error instanceof repl.Recoverable) error = error.err;
  if (error && error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') error = interrupted();
  if (!util.types.isNativeError(error) && !(error instanceof Error)) {
    const value = util.inspect(error);
    return { name: 'Error', value, traceback: `Uncaught ${value}` };
  }
  const lines = String(error.stack || error).split('\n');
  return { name: String(error.name), value: String(error.message),
    traceback: lines.filter((line) => !/^\s+at /.test(line) || !OURS.test(line)).join('\n') };
}

// Nothing that was drawn, or seeded, before the freeze may be drawn from: it is the same in all sandboxes.
function begin(folder) {
  require('./thawbox_reseed.node');
  const drawn = new Uint32Array(2048);
  let at = drawn.length;
  Math.random = function random() { // V8 cannot be told to seed its own anew
    if (at === drawn.length) {
      crypto.randomFillSync(drawn);
      at = 0;
    }
    return ((drawn[at++] >>> 5) * 2 ** 26 + (drawn[at++] >>> 6)) / 2 ** 53;
  };
  nr = 0;
  try {
    process.chdir(folder);
  } catch {
    // it stays where it is
  }
}

async function run({ code, env, typescript, begin: folder }) {
  if (folder !== undefined) begin(folder);
  for (const [name, value] of Object.entries(env)) {
    if (value === null) delete process.env[name];
    else process.env[name] = value;
  }
  try {
    const value = await evaluate(code, typescript);
    if (value === undefined) return {};
    return { text: typeof value === 'string' ? value : util.inspect(value) };
  } catch (error) {
    return { error: describe(error) };
  } finally {
    running = null;
    isInRepl = false;
  }
}

const requests = readline.createInterface({ input: new net.Socket({ fd: requestFd, readable: true, writable: false }) });
requests.on('line', async (line) => {
  const answer = await run(JSON.parse(line));
  fs.writeSync(answerFd, `${JSON.stringify(answer)}\n`);
});
requests.on('close', () => process.exit());
