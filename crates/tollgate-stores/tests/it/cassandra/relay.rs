//! A relay between a driver and a server that holds frames back on command.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Requests that run prepared statements, alone and as a batch.
const EXECUTE: u8 = 0x0a;
const BATCH: u8 = 0x0d;
/// The responses to them; a driver also sends keep-alives.
const RESULT: u8 = 0x08;

pub struct Delayed {
    pub port: u16,
    /// How many answers still pass, and for how long the others wait after them.
    order: Arc<Mutex<Option<(u32, Duration)>>>,
    held_request: Arc<Mutex<HeldRequest>>,
    pub passed: Arc<AtomicU32>,
    pub held: Arc<AtomicU32>,
}

/// When a request that was held back reaches the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrives {
    /// After the next request was answered, and before its answer is passed on.
    AfterLookUp,
    /// One answer later.
    AfterSecondSend,
}

#[derive(Default)]
enum HeldRequest {
    #[default]
    None,
    /// So many requests pass before the one that is held.
    Awaited(u32, Arrives),
    /// The frame, and how many answers pass before it goes on.
    Held(Vec<u8>, u32),
    PassedOn,
}

impl Delayed {
    pub fn start(server: u16) -> Delayed {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let delayed = Delayed {
            port,
            order: Arc::default(),
            held_request: Arc::default(),
            passed: Arc::default(),
            held: Arc::default(),
        };
        let Delayed { order, passed, held, held_request, .. } = &delayed;
        let order = order.clone();
        let passed = passed.clone();
        let held = held.clone();
        let held_request = held_request.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", server)).expect("the server is there");
                let requests = (client.try_clone().expect("a clone"), server.try_clone().expect("a clone"));
                let order = order.clone();
                let passed = passed.clone();
                let held = held.clone();
                let holds = held_request.clone();
                let releases = held_request.clone();
                thread::spawn(move || pass_requests(requests, &holds));
                thread::spawn(move || {
                    let mut answers = Answers { server, client, held_request: releases };
                    while answers.pass(&order, &held).is_ok() {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        delayed
    }

    pub fn hold_after(&self, answers: u32, wait: Duration) {
        *lock(&self.order) = Some((answers, wait));
    }

    /// Holds one request back, after some others.
    pub fn hold_request_after(&self, requests: u32, arrives: Arrives) {
        *lock(&self.held_request) = HeldRequest::Awaited(requests, arrives);
    }

    /// Whether the request that was held back has been answered.
    pub fn is_passed_on(&self) -> bool {
        matches!(*lock(&self.held_request), HeldRequest::PassedOn)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics with it")
}

fn pass_requests((mut client, mut server): (TcpStream, TcpStream), held_request: &Mutex<HeldRequest>) {
    while let Ok(frame) = read_frame(&mut client) {
        let mut held = lock(held_request);
        if let HeldRequest::Awaited(requests, arrives) = &mut *held
            && matches!(opcode(&frame), EXECUTE | BATCH)
        {
            if *requests == 0 {
                *held = HeldRequest::Held(frame, *arrives as u32);
                continue;
            }
            *requests -= 1;
        }
        drop(held);
        if server.write_all(&frame).is_err() {
            break;
        }
    }
    server.shutdown(std::net::Shutdown::Write).ok();
}

struct Answers {
    server: TcpStream,
    client: TcpStream,
    held_request: Arc<Mutex<HeldRequest>>,
}

impl Answers {
    /// Passes one frame of the server on, now or later.
    fn pass(&mut self, order: &Mutex<Option<(u32, Duration)>>, held: &AtomicU32) -> Result<()> {
        let frame = read_frame(&mut self.server)?;
        let late = if opcode(&frame) == RESULT { self.send_held_request()? } else { Vec::new() };
        let wait = match &mut *lock(order) {
            Some((0, wait)) => Some(std::mem::take(wait)),
            Some((answers, _)) => {
                *answers -= 1;
                None
            }
            None => None,
        };
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            held.fetch_add(1, Ordering::Relaxed);
            thread::sleep(wait);
        }
        self.client.write_all(&frame)?;
        self.client.write_all(&late)
    }

    /// Sends the request that was held back, if it is time, and waits for its answer; what came meanwhile.
    fn send_held_request(&mut self) -> Result<Vec<u8>> {
        let mut held = lock(&self.held_request);
        let HeldRequest::Held(frame, answers) = &mut *held else { return Ok(Vec::new()) };
        if *answers > 0 {
            *answers -= 1;
            return Ok(Vec::new());
        }
        self.server.write_all(frame)?;
        let mut came = Vec::new();
        loop {
            let frame = read_frame(&mut self.server)?;
            came.extend_from_slice(&frame);
            if opcode(&frame) == RESULT {
                *held = HeldRequest::PassedOn;
                return Ok(came);
            }
        }
    }
}

fn opcode(frame: &[u8]) -> u8 {
    frame[4]
}

/// A frame of the fourth version of the protocol.
fn read_frame(from: &mut TcpStream) -> Result<Vec<u8>> {
    let mut frame = vec![0; 9];
    from.read_exact(&mut frame)?;
    let len = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]) as usize;
    frame.resize(9 + len, 0);
    from.read_exact(&mut frame[9..])?;
    Ok(frame)
}
